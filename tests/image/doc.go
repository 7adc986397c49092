// Package image holds what is in the image, that it is the same whoever builds it, and
// that its engine does the main job in a container with the capabilities that
// docs/security.md lists, and with none of them fewer.
package image
