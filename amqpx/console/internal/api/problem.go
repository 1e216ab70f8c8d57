package api

import (
	"errors"
	"fmt"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// wrong returns a 422 that names a field.
func wrong(location, message string) error {
	return huma.Error422UnprocessableEntity(message, &huma.ErrorDetail{Location: location, Message: message})
}

// Bounds of a problem, because megabytes of a request may be wrong.
const (
	maxDetails  = 20
	maxLocation = 200
)

// bounded keeps a problem from repeating the request.
func bounded(_ huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	if more := len(m.Errors) - maxDetails; more > 0 {
		m.Errors = append(m.Errors[:maxDetails:maxDetails], &huma.ErrorDetail{Message: fmt.Sprintf("and %d more", more)})
	}
	for _, d := range m.Errors {
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

// located adds where a field is that the service rejected. The service knows only its name, the
// operation knows where it is.
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

// problem returns an error as an answer.
func (a *api) problem(err error) error {
	if s, ok := err.(huma.StatusError); ok { //nolint:errorlint // made here, and not wrapped
		return s
	}
	if f, ok := errors.AsType[*service.FieldError](err); ok {
		return wrong(f.Field, f.Reason)
	}
	if f, ok := errors.AsType[*schedule.TaskError](err); ok {
		return wrong(place(f.Field), f.Reason)
	}
	if f, ok := errors.AsType[*schedule.RecurringError](err); ok {
		return wrong(place(f.Field), f.Reason)
	}
	text := service.Told(service.Identity{}, err) // drivers' errors are for the log
	switch {
	case errors.Is(err, service.ErrNoQueue):
		return huma.Error404NotFound(text)
	case errors.Is(err, service.ErrRefused):
		return huma.Error409Conflict(text)
	case errors.Is(err, service.ErrForbidden):
		return huma.Error403Forbidden(text)
	case errors.Is(err, schedule.ErrNotFound), errors.Is(err, schedule.ErrNoSchedule), errors.Is(err, service.ErrNoJob), errors.Is(err, service.ErrNoMessages):
		return huma.Error404NotFound(text)
	case errors.Is(err, schedule.ErrExists):
		return huma.Error409Conflict("there is already a different task with this id; use another id, move it, or give replace=true")
	case errors.Is(err, schedule.ErrStatus), errors.Is(err, schedule.ErrUnique), errors.Is(err, service.ErrJobState):
		return huma.Error409Conflict(text)
	case errors.Is(err, schedule.ErrConfig), errors.Is(err, amqpx.ErrConfig):
		return huma.Error422UnprocessableEntity(text)
	}
	a.log.Warn("api", zap.Error(err))
	return huma.Error503ServiceUnavailable(text)
}

// place returns where requests have a Go field, or only its name if that differs between them.
func place(field string) string {
	key := snake(field)
	if key == "id" || key == "name" {
		return key
	}
	return "body." + key
}

// snake returns the JSON key of a Go field.
func snake(field string) string {
	switch field {
	case "ID":
		return "id"
	case "CorrelationID":
		return "correlation_id"
	case "DeliverAt":
		return "due"
	}
	var b strings.Builder
	for i, r := range field {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}
