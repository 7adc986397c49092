package ovnnb

import (
	"context"
	"errors"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// errFollower says that a server is not the one to talk to. A follower would hand
// what we write on to the leader, but may be cut off from it and show what was.
var errFollower = errors.New("the server does not lead its cluster")

// leadership is a connection to a server's database about itself. The client can
// look after the leader by itself, but leaves a goroutine behind with every
// connection.
type leadership struct{ client client.Client }

// serverRow is a row of the table Database; only select reads it.
type serverRow struct {
	UUID string `ovsdb:"_uuid"`
	Name string `ovsdb:"name"`
}

// dialLeader connects, and refuses a server that does not lead.
func dialLeader(ctx context.Context, address string, files TLS) (*leadership, error) {
	c, err := connect(ctx, "_Server", map[string]model.Model{"Database": &serverRow{}}, nil, address, files)
	if err != nil {
		return nil, err
	}
	l := &leadership{c}
	if err := l.check(ctx); err != nil {
		l.close()
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return l, nil
}

// check tells whether the server leads, or is not clustered at all.
func (l *leadership) check(ctx context.Context) error {
	if l == nil {
		return nil
	}
	results, err := l.client.Transact(ctx, ovsdb.Operation{
		Op: ovsdb.OperationSelect, Table: "Database", Columns: []string{"model", "leader", "connected"},
		Where: []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, northbound)},
	})
	if err != nil {
		return fmt.Errorf("ask who leads: %w", err)
	}
	if len(results) != 1 || results[0].Error != "" || len(results[0].Rows) != 1 {
		return fmt.Errorf("ask who leads: the server knows no %s: %v", northbound, results)
	}
	row := results[0].Rows[0]
	if row["model"] == "clustered" && (row["leader"] != true || row["connected"] != true) {
		return errFollower
	}
	return nil
}

func (l *leadership) close() {
	if l != nil {
		l.client.Close()
	}
}
