package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Errors by what they come from.
var (
	// ErrBroker: the broker does not answer. ErrRefused: it does, and refuses.
	ErrBroker  = errors.New("the broker does not answer")
	ErrRefused = errors.New("the broker refuses it")
	// ErrNoQueue: there is no such queue.
	ErrNoQueue = errors.New("there is no such queue")
	// ErrDatabase: the database does not answer. Told finds it in errors of drivers,
	// which do not wrap it.
	ErrDatabase = errors.New("the database does not answer")
)

// ofBroker marks an error of the broker.
func ofBroker(err error) error {
	if err == nil || own(err) || errors.Is(err, amqpx.ErrPeek) {
		return err
	}
	kind := ErrBroker
	if e, ok := errors.AsType[*amqp.Error](err); ok && e.Server {
		switch e.Code {
		case amqp.NotFound:
			kind = ErrNoQueue
		case amqp.AccessRefused, amqp.NotAllowed, amqp.ResourceLocked, amqp.PreconditionFailed, amqp.NotImplemented:
			kind = ErrRefused
		}
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// DatabaseAway tells whether the database does not answer.
func DatabaseAway(err error) bool {
	return !errors.Is(err, ErrBroker) && !errors.Is(err, ErrRefused) && (errors.Is(err, ErrDatabase) || errors.Is(err, errSlow) || sqldb.Away(err))
}

// own tells whether an error is about what was asked for, in this program's words.
func own(err error) bool {
	if _, ok := errors.AsType[*FieldError](err); ok {
		return true
	}
	return slices.ContainsFunc([]error{
		ErrForbidden, ErrNoJob, ErrJobState, ErrUnavailable, schedule.ErrNotFound, schedule.ErrNoSchedule, schedule.ErrExists, schedule.ErrStatus,
		schedule.ErrTask, schedule.ErrRecurring, schedule.ErrConfig, amqpx.ErrConfig, errSlow,
	}, func(known error) bool { return errors.Is(err, known) })
}

// untold is what a viewer is told of what a driver or a broker says.
const untold = "the log of this process says why"

// Told is what somebody is told of an error. What drivers and brokers say may name
// users and addresses; that is for operators.
func Told(who Identity, err error) string {
	switch {
	case who.Role.May(RoleOperator):
		return err.Error()
	case own(err) && !errors.Is(err, ErrBroker):
		return err.Error()
	}
	for _, known := range []error{ErrBroker, ErrRefused, ErrNoQueue, schedule.ErrNoTable, schedule.ErrDenied, amqpx.ErrPeek} {
		if errors.Is(err, known) {
			return known.Error() + "; " + untold
		}
	}
	if DatabaseAway(err) {
		return ErrDatabase.Error() + "; " + untold
	}
	return untold
}

// veilOverview takes out of an overview what only an operator may see.
func veilOverview(who Identity, o Overview) Overview {
	if who.Role.May(RoleOperator) {
		return o
	}
	if o.Problem != "" {
		o.Problem = untold
	}
	o.Status.Unseen = veilUnseen(who, o.Status.Unseen)
	return o
}

func veilUnseen(who Identity, list []doctor.Unseen) []doctor.Unseen {
	if who.Role.May(RoleOperator) {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		list[i].Why = untold
	}
	return list
}

// veilEntry takes out of an entry why something was not done.
func veilEntry(who Identity, e *Entry) {
	if e.Error != "" && !who.Role.May(RoleOperator) {
		e.Error = Hidden
	}
}

// Away tells whether the broker, or the database, does not answer.
func (o Overview) Away(area doctor.Area) (why string, away bool) {
	i := slices.IndexFunc(o.Status.Unseen, func(u doctor.Unseen) bool { return u.Area == area })
	if i < 0 {
		return "", false
	}
	return o.Status.Unseen[i].Why, true
}

// unseen adds what an overview could not see.
func (o *Overview) unseen(area doctor.Area, err error) {
	if _, known := o.Away(area); !known {
		o.Status.Unseen = append(o.Status.Unseen, doctor.Unseen{Area: area, Why: err.Error()})
	}
}

// warn logs what an overview could not see, when it changes.
func (c *Core) warn(last *Overview, o Overview) {
	for _, area := range []doctor.Area{status.AreaBroker, doctor.AreaDatabase} {
		why, away := o.Away(area)
		if !away || area == status.AreaBroker && o.Brokerless {
			continue
		}
		if last != nil {
			if before, _ := last.Away(area); before == why {
				continue
			}
		}
		c.log.Warn("it does not answer", zap.String("what", string(area)), zap.String("error", why))
	}
}

// blind is a source whose broker cannot be looked at.
func blind(err error) status.Source {
	var src status.Source
	src.Broker.Dial = func(context.Context) (*amqp.Connection, error) { return nil, err }
	return src
}
