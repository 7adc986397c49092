package podnetworks

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Entry is what an entry says.
type Entry struct {
	HardwareAddr net.HardwareAddr
	Addrs        []netip.Prefix
	Gateways     []netip.Addr
	// Mode is empty where no external server gives the address.
	Mode string
	Role string
}

// Entry reads an entry. False: there is none. With an error, what can be read is
// there all the same.
func (a Annotation) Entry(key string) (Entry, bool, error) {
	if a.entries.index(key) < 0 {
		return Entry{}, false, nil
	}
	o, err := a.entry(key)
	if err != nil {
		return Entry{}, true, err
	}
	var e Entry
	var mac string
	var addrs, gateways []string
	errs := []error{
		read(o, keyMAC, &mac), read(o, keyAddresses, &addrs), read(o, keyGateways, &gateways),
		read(o, keyMode, &e.Mode), read(o, keyRole, &e.Role),
	}
	if mac != "" {
		e.HardwareAddr, err = net.ParseMAC(mac)
		errs = append(errs, err)
	}
	for _, text := range addrs {
		p, err := netip.ParsePrefix(text)
		if err == nil {
			e.Addrs = append(e.Addrs, p)
		}
		errs = append(errs, err)
	}
	for _, text := range gateways {
		g, err := netip.ParseAddr(text)
		if err == nil {
			e.Gateways = append(e.Gateways, g)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return e, true, fmt.Errorf("entry %q: %w", key, err)
	}
	return e, true, nil
}

// read decodes the value of a key, if it is there.
func read(o object, name string, into any) error {
	text, ok := o.value(name)
	if !ok {
		return nil
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// entry is the object of an entry that is there.
func (a Annotation) entry(key string) (object, error) {
	m := a.entries.members[a.entries.index(key)]
	text := a.entries.text
	if text[m.start] != '{' {
		return object{}, fmt.Errorf("entry %q is not an object: %.32s", key, text[m.start:m.end])
	}
	o, err := scanObject(text, m.start)
	if err != nil {
		return object{}, fmt.Errorf("entry %q: %w", key, err)
	}
	for _, m := range o.members {
		for _, known := range knownKeys {
			// OVN-Kubernetes would read both as one.
			if m.name != known && strings.EqualFold(m.name, known) {
				return object{}, fmt.Errorf("entry %q: key %q is %q in other letters", key, m.name, known)
			}
		}
	}
	return o, nil
}

// edit makes changes in an entry that is there.
type edit struct {
	a   Annotation
	key string
	err error
}

func (a Annotation) edit(key string) *edit { return &edit{a: a, key: key} }

func (e *edit) do(change func(object) string) {
	if e.err != nil {
		return
	}
	if e.a.entries.index(e.key) < 0 {
		e.err = fmt.Errorf("there is no entry %q", e.key)
		return
	}
	var o object
	if o, e.err = e.a.entry(e.key); e.err != nil {
		return
	}
	if text := change(o); text != o.text {
		e.a, e.err = Parse(text)
	}
}

func (e *edit) set(name string, value any) {
	text, err := json.Marshal(value)
	if err != nil && e.err == nil {
		e.err = err
		return
	}
	e.do(func(o object) string { return o.set(name, string(text)) })
}

// replace sets a key only where it is there.
func (e *edit) replace(name string, value any) {
	e.do(func(o object) string {
		text, err := json.Marshal(value)
		if _, there := o.value(name); !there || err != nil {
			return o.text
		}
		return o.set(name, string(text))
	})
}

func (e *edit) remove(name string) {
	e.do(func(o object) string { return o.remove(name) })
}

// WithLease is the annotation with a leased address in an entry that is there:
// the address with its mask, the routers if there are any, and the mode. MAC,
// role and routes stay.
func (a Annotation) WithLease(key string, addr netip.Prefix, gateways []netip.Addr) (Annotation, error) {
	// A lease of DHCPv4 has nothing to say of IPv6.
	if !addr.IsValid() || !addr.Addr().Is4() {
		return a, fmt.Errorf("%s is no leased address", addr)
	}
	routers := make([]string, 0, len(gateways))
	for _, g := range gateways {
		if !g.Is4() {
			return a, fmt.Errorf("%s is no router of a lease", g)
		}
		routers = append(routers, g.String())
	}
	e := a.edit(key)
	e.set(keyAddresses, []string{addr.String()})
	e.replace(keyLegacyAddress, addr.String())
	if len(routers) > 0 {
		e.set(keyGateways, routers)
		e.replace(keyLegacyGateway, routers[0])
	} else {
		e.remove(keyGateways)
		e.remove(keyLegacyGateway)
	}
	e.set(keyMode, ModeDHCP)
	return e.result(a)
}

// MACOnly is the annotation with an entry, which is there, as it is without an
// address: ip_addresses null, as OVN-Kubernetes writes it where it gives none.
// The mode stays only if it shall.
func (a Annotation) MACOnly(key string, keepMode bool) (Annotation, error) {
	e := a.edit(key)
	e.do(func(o object) string {
		switch text, there := o.value(keyAddresses); {
		case !there, same(text, "null"), same(text, "[]"):
			return o.text
		}
		return o.set(keyAddresses, "null")
	})
	e.remove(keyGateways)
	e.remove(keyLegacyAddress)
	e.remove(keyLegacyGateway)
	if !keepMode {
		e.remove(keyMode)
	}
	return e.result(a)
}

// WithMode is the annotation with the mode "dhcp" in an entry that is there.
func (a Annotation) WithMode(key string) (Annotation, error) {
	e := a.edit(key)
	e.set(keyMode, ModeDHCP)
	return e.result(a)
}

// WithInterface is the annotation with an entry for an interface that no one else
// makes one for: its MAC, and the role of a secondary interface.
func (a Annotation) WithInterface(key string, mac net.HardwareAddr) (Annotation, error) {
	e := a.edit(key)
	if a.entries.index(key) < 0 {
		e.a, e.err = Parse(a.entries.set(key, "{}"))
	}
	if len(mac) > 0 {
		e.set(keyMAC, mac.String())
	}
	e.set(keyRole, RoleSecondary)
	return e.result(a)
}

// Without is the annotation without an entry.
func (a Annotation) Without(key string) (Annotation, error) { return Parse(a.entries.remove(key)) }

func (e *edit) result(before Annotation) (Annotation, error) {
	if e.err != nil {
		return before, e.err
	}
	return e.a, nil
}
