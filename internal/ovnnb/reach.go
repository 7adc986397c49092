package ovnnb

import "context"

// Reach connects once, as Run does, and says to which address; the error says what
// was tried.
func Reach(ctx context.Context, cfg Config) (address string, err error) {
	p, err := New(cfg)
	if err != nil {
		return "", err
	}
	db, err := p.dial(ctx)
	if err != nil {
		return "", err
	}
	defer db.leader.close()
	defer db.client.Close()
	return db.address, nil
}
