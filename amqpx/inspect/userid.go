package inspect

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// userIDs records which user ids the broker accepts from this client. Each run uses a new userIDs.
type userIDs struct {
	c       inner.Client
	refused map[string]string // the broker's reason by user id; empty if it accepts the user id
}

// of returns the user id with which a message can be published again. If that is not the original user id, the second
// result says why.
func (u *userIDs) of(ctx context.Context, raw *amqp.Delivery) (id, lost string, err error) {
	if raw.UserId == "" {
		if p := header.Of(raw); p.UserID != "" {
			lost = "only the header rabbitdelay-carried contains it, and any publisher can write that header"
		}
		return "", lost, nil
	}
	why, tried := u.refused[raw.UserId]
	if !tried {
		if why, err = u.try(ctx, raw.UserId); err != nil {
			return "", "", fmt.Errorf("testing whether the broker accepts the user id %q: %w", raw.UserId, err)
		}
		u.refused[raw.UserId] = why
	}
	if why != "" {
		return "", why, nil
	}
	return raw.UserId, "", nil
}

// try publishes a message with the user id to a queue that does not exist. It uses a separate channel, because a
// refusal closes the channel.
func (u *userIDs) try(ctx context.Context, userID string) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	err = u.c.Declaring(ctx, func(conn *amqp.Connection) error {
		ch, err := channels.Open(conn)
		if err != nil {
			return err
		}
		defer wire.CloseChannel(ctx, ch)
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.Confirm(false); err != nil {
			return err
		}
		return wait.Done(ctx, func() error {
			dc, err := ch.PublishWithDeferredConfirm("", noQueue, false, false, amqp.Publishing{UserId: userID})
			if err != nil {
				return err
			}
			if taken, err := dc.WaitContext(ctx); taken || err != nil {
				return err
			}
			if err, ok := <-closed; ok {
				return err
			}
			return amqp.ErrClosed
		})
	})
	switch {
	case wire.IsCode(err, amqp.PreconditionFailed):
		return fmt.Sprintf("the broker accepts the user id %q only from that user, or from a user with the impersonator tag", userID), nil
	case wire.IsCode(err, amqp.AccessRefused):
		return fmt.Sprintf("this user is not allowed to write to the default exchange, which is used to test the user id %q", userID), nil
	}
	return "", err
}

// noQueue is the name of a queue that does not exist on any broker.
const noQueue = "rabbitdelay.no-queue.71bd0a93c5e24f6c"
