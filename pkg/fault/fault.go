// Package fault holds the one error type of dropctl and the one table of its codes.
//
// Every expected error carries a code from where it arises. The table maps the code to an exit status,
// an HTTP status, a title, a hint and the text of `dropctl explain`, so that the command line, the API
// and the documentation can never disagree.
package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Error is an expected error: a code from the table, one line of text, and what to do next.
// It is immutable after creation and safe for concurrent use.
type Error struct {
	Code    Code
	Message string         // one line, without code and hint; holds no secret
	Hint    string         // what to run or change next; empty means the table's hint
	Field   string         // the input field or flag at fault, if there is one
	Details map[string]any // facts for programs (snake_case), printed with -o json; may be nil
	Err     error          // the cause; may be nil
}

// New returns an error of the given code. Here and below, durations among the arguments are written as Duration does.
func New(code Code, format string, args ...any) *Error {
	readable(args)
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns an error of the given code whose cause is err. The cause's text follows the message.
func Wrap(code Code, err error, format string, args ...any) *Error {
	readable(args)
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}

// WithHint returns a copy that says what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	readable(args)
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// WithField returns a copy that names the input field at fault.
func (e *Error) WithField(field string) *Error {
	c := *e
	c.Field = field
	return &c
}

// With returns a copy that carries one more fact for programs.
func (e *Error) With(key string, value any) *Error {
	c := *e
	c.Details = make(map[string]any, len(e.Details)+1)
	for k, v := range e.Details {
		c.Details[k] = v
	}
	c.Details[key] = value
	return &c
}

// Error returns the message and, behind it, the cause, on one line.
func (e *Error) Error() string {
	s := e.Message
	if e.Err != nil {
		if s != "" {
			s += ": "
		}
		s += e.Err.Error()
	}
	return strings.ReplaceAll(s, "\n", " ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is lets errors.Is(err, &fault.Error{Code: c}) match by code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// As returns err as an *Error: itself if it is one, an interruption for a cancelled context, unavailable
// for a deadline that ran out, else an unclassified failure around it. It returns nil for nil.
func As(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.Canceled):
		return Wrap(Interrupted, err, "interrupted")
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(Unavailable, err, "the time limit ran out")
	}
	return &Error{Code: Failed, Err: err}
}

// CodeOf returns the code of err, Failed for an unclassified one and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return As(err).Code
}

// Is reports whether err carries the code.
func Is(err error, code Code) bool { return err != nil && CodeOf(err) == code }

// HintOf returns what to do next: the error's own hint, else the table's.
func HintOf(err error) string {
	e := As(err)
	if e == nil {
		return ""
	}
	if e.Hint != "" {
		return e.Hint
	}
	return Lookup(e.Code).Hint
}

// ExitOf returns the exit status for err; 0 for nil.
func ExitOf(err error) Exit {
	if err == nil {
		return OK
	}
	return Lookup(As(err).Code).Exit
}
