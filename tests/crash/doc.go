// Package crash ends dhcp-engine between any two of its system calls that others
// can see: those that write below its state folder, and those that send something.
// The engine runs under a seccomp filter that hands each such call to the test,
// on whatever thread it is made, before the kernel carries it out.
package crash
