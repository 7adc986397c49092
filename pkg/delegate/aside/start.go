package aside

import "syscall"

// Started tells how this process was started, without package os, which is not
// there yet; false when the kernel does not say.
func Started() (Program, bool) {
	raw, err := readFile("/proc/self/cmdline")
	if err != nil || len(raw) == 0 || raw[len(raw)-1] != 0 {
		return Program{}, false
	}
	var args []string
	for begin, i := 0, 0; i < len(raw); i++ {
		if raw[i] == 0 {
			args = append(args, string(raw[begin:i]))
			begin = i + 1
		}
	}
	return NewProgram(args)
}

// NewProgram takes the arguments of a process apart; false when the program's
// folder cannot be found.
func NewProgram(args []string) (Program, bool) {
	if len(args) == 0 || args[0] == "" {
		return Program{}, false
	}
	path, slash := args[0], lastSlash(args[0])
	if slash < 0 { // found by a shell in PATH
		exe, err := readlink("/proc/self/exe")
		if err != nil {
			return Program{}, false
		}
		return Program{Name: path, Dir: exe[:max(lastSlash(exe), 1)], Args: args[1:]}, true
	}
	return Program{Name: path[slash+1:], Dir: path[:max(slash, 1)], Args: args[1:]}, true
}

func lastSlash(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '/' {
			return i
		}
	}
	return -1
}

func readlink(path string) (string, error) {
	buf := make([]byte, syscall.PathMax)
	n, err := syscall.Readlink(path, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// SearchPath splits CNI_PATH. An empty element, which elsewhere means the
// working folder, is left out: nobody means to run plugins from there.
func SearchPath(cniPath string) []string {
	var dirs []string
	for cniPath != "" {
		dir, rest := cniPath, ""
		for i := range len(cniPath) {
			if cniPath[i] == ':' {
				dir, rest = cniPath[:i], cniPath[i+1:]
				break
			}
		}
		if dir != "" {
			dirs = append(dirs, dir)
		}
		cniPath = rest
	}
	return dirs
}

// Behind returns what of CNI_PATH comes behind the folder own: where the plugin
// is to be found whose name we were started under. "Any copy but ourselves"
// would not do, since two programs that stand before a third in this way would
// call each other for ever. If own is there more than once, the last counts;
// Multus puts its binDir in front of a CNI_PATH that often has it already.
func Behind(own, cniPath string) ([]string, error) {
	dirs := SearchPath(cniPath)
	var self syscall.Stat_t
	if err := stat(own, &self); err != nil {
		return nil, &Error{codeConfig, "look up own folder " + own + ": " + err.Error()}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		var s syscall.Stat_t
		if stat(dirs[i], &s) == nil && s.Dev == self.Dev && s.Ino == self.Ino {
			return dirs[i+1:], nil
		}
	}
	return nil, &Error{codeConfig, "own folder " + own + " is not in CNI_PATH \"" + cniPath + "\": which plugin stands behind it?"}
}
