package api

// The folders of the state folder in which the plugin leaves notes for an engine
// that is away, each a file named after its attachment.
const (
	// EndedFolder has an empty file where the attachment's DEL has come.
	EndedFolder = "ended"
	// PassedFolder has the Request of an ADD on an interposed network of which
	// nobody said whether it is ours, as JSON.
	PassedFolder = "passed"
)

// NetworksFile is the file of the state folder that lists the networks that are
// marked as ours by their NetworkAttachmentDefinitions, for a plugin that finds no
// engine: a Networks as JSON.
const NetworksFile = "networks.json"

// Networks is the content of NetworksFile.
type Networks struct {
	// Marked are the NetworkAttachmentDefinitions, "<namespace>/<name>", sorted.
	Marked []string `json:"marked"`
}
