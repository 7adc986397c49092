package ovnnb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// Names of the schema.
const (
	northbound = "OVN_Northbound"
	portTable  = "Logical_Switch_Port"
)

const (
	// answerTime bounds a question to the database; a healthy one takes milliseconds.
	answerTime = 5 * time.Second
	// probeInterval is how often a quiet connection is asked whether it is one.
	probeInterval = 5 * time.Second
)

// database is one connection. It is not mended: when it is gone a new one is made,
// so that no state of an old one is carried over.
type database struct {
	client  client.Client
	address string
	// gone is closed when the connection has ended.
	gone chan struct{}
	// leader looks whether the server still leads its cluster; nil where that does
	// not matter.
	leader *leadership

	// mu guards watched: the monitors of pods, by UID.
	mu      sync.Mutex
	watched map[string]client.MonitorCookie
}

// dial connects to one address. changed is called whenever a monitored port has
// changed; it must not block.
func dial(ctx context.Context, address string, files TLS, clustered bool, changed func()) (*database, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	d := &database{address: address, gone: make(chan struct{}), watched: map[string]client.MonitorCookie{}}
	var err error
	if clustered {
		if d.leader, err = dialLeader(ctx, address, files); err != nil {
			return nil, err
		}
	}
	byPod := map[string][]model.ClientIndex{portTable: {{Columns: []model.ColumnKey{{Column: "options", Key: optionUID}}}}}
	d.client, err = connect(ctx, northbound, map[string]model.Model{portTable: &port{}}, byPod, address, files)
	if err != nil {
		d.leader.close()
		return nil, err
	}
	rows := d.client.Cache()
	if rows == nil { // the server has closed the connection already
		d.client.Close()
		d.leader.close()
		return nil, client.ErrNotConnected
	}
	rows.AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(string, model.Model) { changed() },
		UpdateFunc: func(string, model.Model, model.Model) { changed() },
		DeleteFunc: func(string, model.Model) { changed() },
	})
	return d, nil
}

// connect opens a connection for some tables of a database.
func connect(ctx context.Context, name string, tables map[string]model.Model, indexes map[string][]model.ClientIndex, address string, files TLS) (client.Client, error) {
	dbModel, err := model.NewClientDBModel(name, tables)
	if err != nil {
		return nil, err
	}
	dbModel.SetIndexes(indexes)
	options := []client.Option{client.WithEndpoint(address)}
	if strings.HasPrefix(address, "ssl:") {
		config, err := files.load()
		if err != nil {
			return nil, err
		}
		options = append(options, client.WithTLSConfig(config))
	}
	c, err := client.NewOVSDBClient(dbModel, options...)
	if err != nil {
		return nil, err
	}
	if err := c.Connect(ctx); err != nil {
		return nil, err
	}
	// A server that has closed the connection meanwhile is found out here: the
	// client tells of it only to whoever listens at that moment.
	if err := c.Echo(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// run watches over the connection until it or ctx ends; then gone is closed.
func (d *database) run(ctx context.Context) error {
	defer close(d.gone)
	defer d.leader.close()
	defer d.client.Close()
	probe := time.NewTicker(probeInterval)
	defer probe.Stop()
	if d.client.CurrentEndpoint() == "" {
		return errors.New("the server closed the connection") // before anybody listened
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.client.DisconnectNotify():
			return errors.New("the server closed the connection")
		case <-probe.C:
			// This finds too when a notification was missed.
			ctx, cancel := context.WithTimeout(ctx, answerTime)
			err := d.client.Echo(ctx)
			if err == nil {
				err = d.leader.check(ctx)
			}
			cancel()
			if err != nil {
				return err
			}
		}
	}
}

// watch monitors the ports of a pod; when it returns without error, ports knows
// those that are there.
func (d *database) watch(ctx context.Context, uid string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.watched[uid]; ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	p := &port{}
	m := d.client.NewMonitor(client.WithConditionalTable(p,
		[]model.Condition{{Field: &p.Options, Function: ovsdb.ConditionIncludes, Value: map[string]string{optionUID: uid}}},
		&p.Name, &p.Addresses, &p.PortSecurity, &p.Options, &p.ExternalIDs))
	// There are several monitors, none of which can be resumed.
	m.Method = ovsdb.ConditionalMonitorRPC
	cookie, err := d.client.Monitor(ctx, m)
	if err != nil {
		return fmt.Errorf("monitor ports in %s: %w", d.address, err)
	}
	d.watched[uid] = cookie
	return nil
}

// keep ends the monitors of all pods but those in uids, and returns how many it has
// ended and how many are left. What a monitor has shown stays in the cache when it
// ends, so it ends after its ports.
func (d *database) keep(ctx context.Context, uids map[string]bool) (ended, left int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { left = len(d.watched) }()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for uid := range maps.Clone(d.watched) {
		if uids[uid] {
			continue
		}
		if rows, err := d.ports(ctx, uid); err != nil {
			return ended, 0, err
		} else if len(rows) > 0 {
			continue
		}
		if err := d.client.MonitorCancel(ctx, d.watched[uid]); err != nil {
			return ended, 0, fmt.Errorf("end a monitor in %s: %w", d.address, err)
		}
		delete(d.watched, uid)
		ended++
	}
	return ended, 0, nil
}

// ports are the ports of a watched pod, by name.
func (d *database) ports(ctx context.Context, uid string) ([]port, error) {
	var rows []port
	err := d.client.Where(&port{Options: map[string]string{optionUID: uid}}).List(ctx, &rows)
	if err != nil {
		return nil, fmt.Errorf("list ports of %s: %w", d.address, err)
	}
	slices.SortFunc(rows, func(a, b port) int { return strings.Compare(a.Name, b.Name) })
	return rows, nil
}

// write gives a port what differs of c, in one transaction, if it is still the port
// that it was; false: it is not, and nothing was written.
func (d *database) write(ctx context.Context, p port, c columns) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	row := ovsdb.Row{}
	for column, list := range map[string][2][]string{"addresses": {p.Addresses, c.addresses}, "port_security": {p.PortSecurity, c.security}} {
		if same(list[0], list[1]) {
			continue
		}
		set, err := ovsdb.NewOvsSet(list[1])
		if err != nil {
			return false, err
		}
		row[column] = set
	}
	options, err := ovsdb.NewOvsMap(map[string]string{optionUID: p.Options[optionUID]})
	if err != nil {
		return false, err
	}
	ids, err := ovsdb.NewOvsMap(map[string]string{idNAD: p.ExternalIDs[idNAD]})
	if err != nil {
		return false, err
	}
	update := ovsdb.Operation{
		Op: ovsdb.OperationUpdate, Table: portTable, Row: row,
		Where: []ovsdb.Condition{
			ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: p.UUID}),
			ovsdb.NewCondition("name", ovsdb.ConditionEqual, p.Name),
			ovsdb.NewCondition("options", ovsdb.ConditionIncludes, options),
			ovsdb.NewCondition("external_ids", ovsdb.ConditionIncludes, ids),
		},
	}
	results, err := d.client.Transact(ctx, update)
	if err == nil {
		_, err = ovsdb.CheckOperationResults(results, []ovsdb.Operation{update})
	}
	if err != nil {
		return false, fmt.Errorf("write port %s in %s: %w", p.Name, d.address, err)
	}
	return results[0].Count == 1, nil
}
