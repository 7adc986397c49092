// Package dhcp4 is the DHCP client of RFC 2131 as a pure machine: events go in,
// actions come out, and nothing else happens.
//
//	m := dhcp4.New(cfg)
//	actions := m.Step(now, dhcp4.Start{})
//	// carry them out in order, then wait for a message or for m.Deadline()
//	actions = m.Step(now, dhcp4.Elapsed{})
//
// The machine has no goroutine, socket, clock or log. The time is an argument,
// chance comes from Config.Rand; the same events at the same times with the same
// randomness give the same actions. It takes any bytes the codec takes and never
// panics on them: a message that does not fit is an Ignore with the reason.
//
// # What the caller does
//
// Actions are done in their order. What stands in a Claim is made durable before
// the Send after it; what stands in a Use is made durable before the address is
// configured. A Probe is answered with Probed. After every Step the one timer is
// set to Deadline; a call of Step with Elapsed that comes too early does nothing,
// one that comes too late (a suspended host) does what is due by then.
//
// # States
//
//	            Start                        Start{Previous}, Resume past T1
//	              |                                        |
//	            INIT <----------------------+          REBOOTING
//	DISCOVER      |                         |       ACK |   | NAK, silence
//	          SELECTING                     |           |   +--------> INIT
//	OFFER         |  Claim, REQUEST         |           |
//	          REQUESTING --- NAK, silence --+           |
//	ACK           |                         |           |
//	          (PROBING) --- in use ---------+           |   DECLINE
//	              |                         |           |
//	            BOUND <---------------------|-----------+
//	T1            |   ^                     |
//	          RENEWING|---- NAK ------------+   REQUEST by unicast
//	T2            |   | ACK                 |
//	         REBINDING ---- NAK, expiry ----+   REQUEST by broadcast
//
// PROBING, and a way to it from REBOOTING, is there when Config.Probe is set.
// docs/dhcp-states.md has every state and every event.
//
// # Where a paragraph stands
//
//	RFC 2131  2, 4.3.1     table 1 and 3, what a reply must be     reply.go
//	          3.1, 4.4.1   INIT, SELECTING, REQUESTING             state.go
//	          3.1, 4.4.1   an address in use, DHCPDECLINE          probe.go
//	          3.2, 4.4.2   INIT-REBOOT, REBOOTING                  state.go
//	          3.3          infinite leases                         ack.go
//	          4.1          retransmission, BROADCAST flag          backoff.go, message.go
//	          4.1          options in 'file' and 'sname'           decode.go
//	          4.3.6, 4.4.1 tables 4 and 5, outgoing messages       message.go
//	          4.4.5        T1, T2, expiry and the tries between    ack.go, backoff.go
//	          4.4.4, 4.4.6 DHCPDECLINE, DHCPRELEASE                message.go
//	RFC 2132  3.3 to 9.9   single options                          ack.go
//	          5.8          option 33                               route.go
//	          9.3          option 52                               decode.go
//	RFC 3396               long options                            decode.go
//	RFC 3397               option 119                              search.go
//	RFC 3442               options 121 and 249                     route.go
//	RFC 4039               rapid commit                            answer.go
//	RFC 5227  2.1, 2.4     what follows from a conflict            probe.go
//	RFC 6842               option 61 in replies                    reply.go
package dhcp4
