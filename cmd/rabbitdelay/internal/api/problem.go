package api

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// wrong returns a 422 that names a field. The message is a sentence about the field.
func wrong(location, message string) error {
	return huma.Error422UnprocessableEntity(message, &huma.ErrorDetail{Location: location, Message: message})
}

// ofField returns a 422 for a field with the given Go name. The field's JSON name precedes the reason in the response's
// text.
func ofField(field, reason string) error {
	at := place(field)
	return huma.Error422UnprocessableEntity(key(at)+": "+reason, &huma.ErrorDetail{Location: at, Message: reason})
}

// key returns the last part of a location.
func key(at string) string { return at[strings.LastIndexByte(at, '.')+1:] }

// Limits on a problem response, because a request may contain megabytes of wrong values.
const (
	maxDetails  = 20
	maxLocation = 200
)

// bounded shortens a problem response, so that it does not repeat the whole request. It adds the value of an unknown
// query parameter.
func bounded(ctx huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	if more := len(m.Errors) - maxDetails; more > 0 {
		m.Errors = append(m.Errors[:maxDetails:maxDetails], &huma.ErrorDetail{Message: fmt.Sprintf("and %d more", more)})
	}
	for _, d := range m.Errors {
		if d.Message == "unknown query parameter" {
			d.Value = ctx.Query(strings.TrimPrefix(d.Location, "query."))
		}
		d.Location = shortened(d.Location, maxLocation)
		d.Message = shortened(d.Message, maxLocation)
		switch x := d.Value.(type) {
		case string:
			d.Value = shortened(x, maxQuoted)
		case map[string]any, []any:
			d.Value = nil
		}
	}
	return m, nil
}

// located completes the location of a field that the service has rejected. The service only reports the field's name,
// whereas the operation determines whether the field is in the path, the query or the body.
func located(ctx huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	for _, d := range m.Errors {
		if d.Location == "" || strings.ContainsAny(d.Location, ".[") {
			continue
		}
		in := "body"
		for _, p := range ctx.Operation().Parameters {
			if p.Name == d.Location {
				in = p.In
				break
			}
		}
		if d.Location != in {
			d.Location = in + "." + d.Location
		}
	}
	return v, nil
}

// problem converts an error to a response.
func (a *api) problem(err error) error {
	if s, ok := err.(huma.StatusError); ok { //nolint:errorlint // made here, and not wrapped
		return s
	}
	if f, ok := errors.AsType[*change.FieldError](err); ok {
		return wrong(f.Field, f.Reason)
	}
	if f, ok := errors.AsType[*schedule.TaskError](err); ok {
		return ofField(f.Field, f.Reason)
	}
	if f, ok := errors.AsType[*schedule.RecurringError](err); ok {
		return ofField(f.Field, f.Reason)
	}
	if f, ok := errors.AsType[*topology.FieldError](err); ok {
		at := place(f.Field)
		return wrong(at, (&topology.FieldError{Field: key(at), Value: f.Value, Want: f.Want}).Error())
	}
	if d, ok := errors.AsType[*topology.DestinationError](err); ok && errors.Is(err, amqpx.ErrConfig) {
		return wrong(place("To"), d.Error())
	}
	text := service.Told(service.Identity{}, err) // the texts of driver errors are only logged
	switch {
	case errors.Is(err, service.ErrNoQueue):
		return huma.Error404NotFound(text)
	case errors.Is(err, service.ErrRefused), errors.Is(err, inspect.ErrPeek):
		return huma.Error409Conflict(text)
	case errors.Is(err, service.ErrForbidden):
		return huma.Error403Forbidden(text)
	case errors.Is(err, schedule.ErrNotFound), errors.Is(err, schedule.ErrNoSchedule), errors.Is(err, service.ErrNoJob), errors.Is(err, service.ErrNoMessages):
		return huma.Error404NotFound(text)
	case errors.Is(err, schedule.ErrExists):
		return huma.Error409Conflict("a different task with this id already exists; use another id, reschedule the existing task, or set replace=true")
	case errors.Is(err, schedule.ErrStatus), errors.Is(err, schedule.ErrUnique), errors.Is(err, service.ErrJobState):
		return huma.Error409Conflict(text)
	case errors.Is(err, schedule.ErrConfig), errors.Is(err, amqpx.ErrConfig):
		return wrong("body", text)
	}
	a.log.Warn("an API request failed", zap.Error(err))
	return huma.Error503ServiceUnavailable(text)
}

// place returns the location of a Go field in a request. If the location differs between operations, it returns only
// the field's name.
func place(field string) string {
	switch name := snake(field); name {
	case "id", "name":
		return name
	case "status":
		return "body.filter.status"
	case "on_conflict", "max_wait", "cooldown":
		return "body.unique." + name
	case "unique_key":
		return "body.unique.key"
	default:
		return "body." + name
	}
}

// snake returns the JSON key of a Go field.
func snake(field string) string {
	switch field {
	case "To":
		return "to_queue"
	case "DeliverAt":
		return "due"
	}
	var b strings.Builder
	for i, r := range field {
		if unicode.IsUpper(r) && i > 0 && !unicode.IsUpper(rune(field[i-1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
