package aside

// conf is what a configuration says of the network, as far as it is needed here.
type conf struct {
	// valid says that the configuration is a JSON object.
	valid bool
	// kind is its type, dhcp that it has a dhcp object.
	kind string
	dhcp bool
	// nad is the NetworkAttachmentDefinition that it names; empty when it names
	// none, or not as "<namespace>/<name>".
	nad string
	// name is the name of the network, deviceID the PCI address of the device that
	// the runtime has chosen.
	name, deviceID string
}

// look decodes a configuration. Of keys that are there twice the last counts.
func look(raw []byte) conf {
	var n conf
	var device, bus, chosen string
	n.valid = Members(raw, func(key string, value []byte) {
		switch key {
		case "type":
			n.kind = decodeText(value)
		case "dhcp":
			n.dhcp = value[0] == '{'
		case "netAttachDefName":
			n.nad = decodeText(value)
		case "name":
			n.name = decodeText(value)
		case "deviceID":
			device = decodeText(value)
		case "pciBusID":
			bus = decodeText(value)
		case "runtimeConfig":
			chosen = ""
			Members(value, func(key string, value []byte) {
				if key == "deviceID" {
					chosen = decodeText(value)
				}
			})
		}
	})
	n.deviceID = PCIDevice(device, bus, chosen)
	if !IsNAD(n.nad) {
		n.nad = ""
	}
	return n
}

// PCIDevice is the first of the texts that is a PCI address, "0000:3b:02.4"; empty
// when none is. Runtimes choose devices of other kinds too, by names of their own.
func PCIDevice(texts ...string) string {
	for _, t := range texts {
		if isPCI(t) {
			return t
		}
	}
	return ""
}

func isPCI(s string) bool {
	const form = "xxxx:xx:xx.d"
	if len(s) != len(form) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch form[i] {
		case 'x':
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return false
			}
		case 'd':
			if c < '0' || c > '7' {
				return false
			}
		default:
			if c != form[i] {
				return false
			}
		}
	}
	return true
}

// IsNAD tells whether s is "<namespace>/<name>".
func IsNAD(s string) bool {
	slash := lastSlash(s)
	return slash > 0 && slash < len(s)-1 && lastSlash(s[:slash]) < 0
}

// listed tells whether the file, an api.Networks, lists the network.
func listed(file, nad string) bool {
	raw, err := readFile(file)
	if err != nil {
		return false // it is written when the engine knows the networks
	}
	found := false
	Members(raw, func(key string, value []byte) {
		if key == "marked" {
			found = false
			Elements(value, func(value []byte) { found = found || decodeText(value) == nad })
		}
	})
	return found
}
