package doctor

// ID names a finding. docs/operations.md explains each.
type ID string

// The areas, whose findings say that all is well.
const (
	AreaKernel     ID = "kernel"
	AreaEngine     ID = "engine"
	AreaState      ID = "state"
	AreaNamespaces ID = "namespaces"
	AreaKubernetes ID = "kubernetes"
	AreaNetworks   ID = "networks"
	AreaMultus     ID = "multus"
	AreaPlugins    ID = "plugins"
	AreaDHCPSocket ID = "dhcp-socket"
	AreaOVN        ID = "ovn"
	AreaVFIO       ID = "vfio"
	AreaDiscover   ID = "discover"
)

// The kernel, and what the process may do with it.
const (
	KernelOld         ID = "kernel-old"
	CapabilityMissing ID = "capability-missing"
	PromoteOff        ID = "promote-secondaries"
	BootTimeOffset    ID = "boot-time-offset"
)

// The engine and its socket.
const (
	SocketMissing      ID = "socket-missing"
	SocketStale        ID = "socket-stale"
	SocketForeign      ID = "socket-foreign"
	SocketSilent       ID = "socket-silent"
	SocketOpen         ID = "socket-open"
	SocketElsewhere    ID = "socket-elsewhere"
	HostPath           ID = "host-path"
	EngineNotReady     ID = "engine-not-ready"
	EngineLimited      ID = "engine-limited"
	EngineVersion      ID = "engine-version"
	MetricsUnreachable ID = "metrics-unreachable"
)

// The state folder.
const (
	StateMissing     ID = "state-missing"
	StateReadOnly    ID = "state-read-only"
	StateFull        ID = "state-full"
	StateMemory      ID = "state-memory"
	StateOpen        ID = "state-open"
	StateElsewhere   ID = "state-elsewhere"
	RecordUnreadable ID = "record-unreadable"
	RecordCorrupt    ID = "record-corrupt"
)

// Network namespaces of pods.
const (
	NetnsRootMissing ID = "netns-root-missing"
	NetnsPrivate     ID = "netns-private"
	NetnsUnseen      ID = "netns-unseen"
	NetnsFew         ID = "netns-few"
)

// The Kubernetes API, and what the account may do with it.
const (
	APISettings       ID = "api-settings"
	APIUnreachable    ID = "api-unreachable"
	APIUnauthorized   ID = "api-unauthorized"
	RightMissing      ID = "right-missing"
	OtherAccount      ID = "other-account"
	NodeName          ID = "node-name"
	AnnotationRefused ID = "annotation-refused"
	PolicyMissing     ID = "policy-missing"
	LeaseKindMissing  ID = "lease-crd-missing"
	ClockSkew         ID = "clock-skew"
)

// The networks.
const (
	DefinitionsMissing ID = "nad-crd-missing"
	NetworkWrong       ID = "network-wrong"
	NetworkIPAM        ID = "network-ipam"
	NetworkTimeout     ID = "network-timeout"
	NetworkElsewhere   ID = "network-elsewhere"
	MasterMissing      ID = "master-missing"
	MasterDown         ID = "master-down"
	MarksStale         ID = "marks-stale"
)

// Multus, and which plugins it finds.
const (
	MultusMissing     ID = "multus-missing"
	MultusNotRunning  ID = "multus-not-running"
	MultusConfigWrong ID = "multus-config-wrong"
	MultusUnread      ID = "multus-config-unread"
	MultusThin        ID = "multus-thin"
	MultusCNIVersion  ID = "multus-cni-version"
	MultusConflist    ID = "multus-conflist"
	MultusBinDirList  ID = "multus-bin-dir"
	MultusCNIPath     ID = "multus-cni-path"
	MultusMount       ID = "multus-mount"
	MultusPlaces      ID = "multus-places"
	MultusSearchPath  ID = "multus-search-path"

	BinDirUnseen       ID = "bin-dir-unseen"
	SearchPathUnseen   ID = "search-path-unseen"
	SearchPathGone     ID = "search-path-gone"
	PluginMissing      ID = "plugin-missing"
	PluginNoProgram    ID = "plugin-not-executable"
	PluginArchitecture ID = "plugin-architecture"
	PluginVersion      ID = "plugin-version"
	BehindMissing      ID = "plugin-behind-missing"
	BehindOurs         ID = "plugin-behind-ours"
	SwapUndone         ID = "swap-undone"
	DelegateMissing    ID = "delegate-missing"
)

// The socket of the dhcp plugin.
const (
	DHCPSocketForeign ID = "dhcp-socket-foreign"
	DHCPSocketMissing ID = "dhcp-socket-missing"
	DHCPDaemon        ID = "dhcp-daemon"
	DHCPTimeout       ID = "dhcp-timeout"
)

// OVN's north database.
const (
	OVNUnreachable ID = "ovn-unreachable"
	OVNAbsent      ID = "ovn-absent"
	OVNOff         ID = "ovn-off"
	OVNFiles       ID = "ovn-files"
	OVNCertificate ID = "ovn-certificate"
)

// Devices on vfio-pci.
const (
	VFIOIOMMU    ID = "vfio-iommu"
	VFIODriver   ID = "vfio-driver"
	VFIOReadOnly ID = "vfio-read-only"
	VFIODev      ID = "vfio-dev"
	VFIOPhysical ID = "vfio-physical"
	VFIOBorrowed ID = "vfio-borrowed"
)

// A DISCOVER on a network.
const (
	DiscoverUnknown   ID = "discover-unknown"
	DiscoverUnmarked  ID = "discover-unmarked"
	DiscoverNoPod     ID = "discover-no-pod"
	DiscoverFailed    ID = "discover-failed"
	DiscoverSilent    ID = "discover-silent"
	DiscoverUnusable  ID = "discover-unusable"
	DiscoverTwoServer ID = "discover-servers"
)
