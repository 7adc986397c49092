package aside

import (
	"syscall"
	"time"
)

// surroundings are what the environment says of a call.
type surroundings struct {
	socket, stateDir           string
	container, ifName, netns   string
	namespace, podName, podUID string
}

func environment() surroundings {
	get := func(key, otherwise string) string {
		if v, _ := syscall.Getenv(key); v != "" {
			return v
		}
		return otherwise
	}
	env := surroundings{
		socket:    get(SocketVariable, defaultSocket),
		stateDir:  get(StateDirVariable, defaultStateDir),
		container: get("CNI_CONTAINERID", ""),
		ifName:    get("CNI_IFNAME", ""),
		netns:     get("CNI_NETNS", ""),
	}
	env.setPod(get("CNI_ARGS", ""))
	return env
}

// setPod finds the pod in CNI_ARGS, "K=V;K=V".
func (env *surroundings) setPod(args string) {
	for begin, i := 0, 0; i <= len(args); i++ {
		if i < len(args) && args[i] != ';' {
			continue
		}
		pair := args[begin:i]
		begin = i + 1
		for at := range len(pair) {
			if pair[at] != '=' {
				continue
			}
			switch pair[:at] {
			case "K8S_POD_NAMESPACE":
				env.namespace = pair[at+1:]
			case "K8S_POD_NAME":
				env.podName = pair[at+1:]
			case "K8S_POD_UID":
				env.podUID = pair[at+1:]
			}
			break
		}
	}
}

// id names the attachment, as api.AttachmentID does.
func (env surroundings) id() string { return env.container + ":" + env.ifName }

// path is the attachment's file in a folder of the state folder.
func (env surroundings) path(folder string) string {
	return env.stateDir + "/" + folder + "/" + env.id()
}

// valid tells whether the attachment's id may become part of a file's name. What
// CNI does not allow there the plugin refuses itself, in its own words.
func (env surroundings) valid() bool {
	for i := range len(env.container) {
		c := env.container[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	for i := range len(env.ifName) {
		// Other characters than these are legal, and nobody uses them.
		if c := env.ifName[i]; c <= ' ' || c > '~' || c == '/' || c == ':' || c == '%' || c == '?' || c == '#' {
			return false
		}
	}
	return env.container != "" && len(env.container)+len(env.ifName) < 200 &&
		env.ifName != "" && len(env.ifName) <= 15 && env.ifName != "." && env.ifName != ".."
}

// encodeRequest is the api.Request of the call as JSON.
func encodeRequest(env surroundings, n conf) []byte {
	out := make([]byte, 0, 1024)
	member := func(key, value string) {
		if value == "" {
			return
		}
		if c := out[len(out)-1]; c != '{' {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = append(out, key...)
		out = append(out, '"', ':')
		out = appendText(out, value)
	}
	out = append(out, '{')
	member("containerID", env.container)
	member("ifName", env.ifName)
	member("netns", env.netns)
	member("network", n.name)
	member("nad", n.nad)
	member("wrapped", n.kind)
	member("deviceID", n.deviceID)
	if env.namespace+env.podName+env.podUID != "" {
		out = append(out, `,"pod":{`...)
		member("namespace", env.namespace)
		member("name", env.podName)
		member("uid", env.podUID)
		out = append(out, '}')
	}
	return append(out, '}')
}

// appendText appends a JSON string. What is no UTF-8 is left to the decoder.
func appendText(out []byte, text string) []byte {
	const hex = "0123456789abcdef"
	out = append(out, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			out = append(out, '\\', c)
		case c < ' ':
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			out = append(out, c)
		}
	}
	return append(out, '"')
}

func questionPath(env surroundings) string {
	return "/v1/attachments/" + env.container + "/" + env.ifName + "/marked"
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 8 << 10

// ask is api.Client.Marked, with the limit as a whole: answered is false when
// nobody said yes or no in that time, for whatever reason.
func ask(socket, path string, body []byte, limit time.Duration) (marked, answered bool) {
	c, err := dial(socket, time.Now().Add(limit))
	if err != nil {
		return false, false
	}
	defer syscall.Close(c.fd)
	request := make([]byte, 0, len(path)+len(body)+256)
	request = append(request, "POST "+path+" HTTP/1.1\r\nHost: dhcp-engine\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: "...)
	request = appendDecimal(request, len(body))
	request = append(request, "\r\n\r\n"...)
	if c.write(append(request, body...)) != nil {
		return false, false
	}
	answer := make([]byte, 0, maxAnswer)
	for !answered && len(answer) < maxAnswer {
		n, err := c.read(answer[len(answer):maxAnswer])
		if err != nil || n <= 0 {
			return false, false
		}
		answer = answer[:len(answer)+n]
		marked, answered = decodeMark(answer)
	}
	return marked, answered
}

func appendDecimal(out []byte, n int) []byte {
	if n >= 10 {
		out = appendDecimal(out, n/10)
	}
	return append(out, byte('0'+n%10))
}

// decodeMark reads an answer: one with status 200 whose body is an api.Mark, the
// whole of it.
func decodeMark(answer []byte) (marked, answered bool) {
	const status, blank = "HTTP/1.1 200 ", "\r\n\r\n"
	if len(answer) < len(status) || string(answer[:len(status)]) != status {
		return false, false
	}
	for i := range len(answer) {
		if len(answer)-i < len(blank) || string(answer[i:i+len(blank)]) != blank {
			continue
		}
		whole := Members(answer[i+len(blank):], func(key string, value []byte) {
			if key == "marked" {
				marked = string(value) == "true"
				answered = marked || string(value) == "false"
			}
		})
		return marked && whole, answered && whole
	}
	return false, false
}
