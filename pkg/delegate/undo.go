package delegate

import "context"

// undo is a stack of steps that take back what was done.
type undo []func(context.Context) error

// push adds the step that takes back what is done next, or was done just now.
func (u *undo) push(step func(context.Context) error) { *u = append(*u, step) }

// run takes everything back, the last first. A step that fails does not stop
// the others; the errors come in the order of the steps. The stack is empty
// then.
func (u *undo) run(ctx context.Context) []error {
	var errs []error
	for i := len(*u) - 1; i >= 0; i-- {
		if err := (*u)[i](ctx); err != nil {
			errs = append(errs, err)
		}
	}
	*u = nil
	return errs
}
