package api

// EndedFolder is the folder of the state folder in which the plugin leaves a note
// for an engine that is away: an empty file named after an attachment says that
// the attachment's DEL has come.
const EndedFolder = "ended"
