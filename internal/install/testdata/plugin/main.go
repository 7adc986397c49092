// Command plugin is a CNI plugin for tests: it says its version, and nothing else.
package main

import "fmt"

var version string

func main() { fmt.Println("plugin", version) }
