package amqpx

import (
	"context"
	"encoding/json"
	"fmt"
)

// JSON returns a Handler that decodes the body of each message into a T. A body that is no
// JSON of a T is rejected, and fn is not called: see Delivery.JSON.
func JSON[T any](fn func(ctx context.Context, v T, d *Delivery) error) Handler {
	return func(ctx context.Context, d *Delivery) error {
		var v T
		if err := d.JSON(&v); err != nil {
			return err
		}
		return fn(ctx, v, d)
	}
}

// JSON decodes the body into what v points to, in any handler:
//
//	var o Order
//	if err := d.JSON(&o); err != nil {
//		return err
//	}
//
// Its error rejects the message, which goes to the dead letters at once with the reason:
// no further attempt would decode it. errors.Is finds ErrBody in it. Fields that v does not
// have are ignored, whatever the content type.
func (d *Delivery) JSON(v any) error {
	err := json.Unmarshal(d.Body, v)
	if err == nil {
		return nil
	}
	what := "the body is no JSON"
	if len(d.Body) == 0 {
		what = "the body is empty, expected JSON"
	}
	return Reject(fmt.Errorf("%w: %s of %T (content type %q, %d bytes): %w", ErrBody, what, v, d.ContentType, len(d.Body), err))
}
