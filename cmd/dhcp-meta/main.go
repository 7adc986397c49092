// Command dhcp-meta is a CNI plugin. It wraps another plugin, and has
// dhcp-engine get an address for its interface from the site's DHCP server. See
// docs/configuration.md for how a network asks for it.
//
// Under another name it steps aside, for every network that is not ours, while it is
// still being initialised: see package early.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate"
	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside/early"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	// With somebody to take SIGPIPE, a result that nobody reads any more is an
	// error, and the ADD is taken back; otherwise it would be the end of us.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	code := delegate.Main(ctx, os.Args, early.Outcome())
	stop()
	os.Exit(code)
}
