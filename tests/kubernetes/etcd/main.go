// Etcd is etcd's own server, built from its module: a program of the tests
// that needs no package of a distribution and starts nothing at its install.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
