// Package engine is the node's DHCP client for the interfaces of pods.
package engine
