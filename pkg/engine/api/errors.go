package api

import (
	"errors"

	"github.com/containernetworking/cni/pkg/types"
)

// CNI error codes that the engine gives (CNI specification, "Error"; codes from
// 100 up are a plugin's own, below 100 reserved).
const (
	CodeUnknown  = types.ErrUnknownContainer            // 3: no such attachment
	CodeConfig   = types.ErrInvalidNetworkConfig        // 7: the network configuration is wrong
	CodeEnv      = types.ErrInvalidEnvironmentVariables // 4: a namespace or interface that cannot be served
	CodeTryAgain = types.ErrTryAgainLater               // 11: a retry can help
	CodeNotReady = types.ErrPluginNotAvailable          // 50: STATUS
	CodeLimited  = types.ErrLimitedConnectivity         // 51: STATUS, ADD works with less than all
	CodeInternal = types.ErrInternal                    // 999
)

// coded is an error with a CNI code.
type coded struct {
	error
	code uint
}

func (c coded) Unwrap() error { return c.error }

// WithCode gives err a CNI code; nil stays nil. An err that has one keeps it.
func WithCode(code uint, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := codeIn(err); ok {
		return err
	}
	return coded{err, code}
}

// CodeOf returns the CNI code of err, CodeInternal when it has none.
func CodeOf(err error) uint {
	if code, ok := codeIn(err); ok {
		return code
	}
	return CodeInternal
}

func codeIn(err error) (code uint, ok bool) {
	var c coded
	if errors.As(err, &c) {
		return c.code, true
	}
	var e *types.Error
	if errors.As(err, &e) {
		return e.Code, true
	}
	return 0, false
}
