// Package install has the tests of dhcp-engine install and uninstall, with real programs:
// network plugins that install themselves anew by cp and mv, executions that go on all the
// time, installers that are killed. internal/install has those that look at every step.
package install
