package delegate

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUndoRunsInReverseAndGoesOn(t *testing.T) {
	var (
		u    undo
		done []string
	)
	step := func(name string, err error) {
		u.push(func(context.Context) error {
			done = append(done, name)
			return err
		})
	}
	first, last := errors.New("first"), errors.New("last")
	step("first", first)
	step("middle", nil)
	step("last", last)

	errs := u.run(t.Context())
	if diff := cmp.Diff([]string{"last", "middle", "first"}, done); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if len(errs) != 2 || errs[0] != last || errs[1] != first {
		t.Errorf("errors %v", errs)
	}
	if u.run(t.Context()); len(done) != 3 {
		t.Error("a second run undoes again")
	}
}
