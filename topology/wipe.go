package topology

import (
	"context"
	"errors"
)

// Wipe deletes everything that the topology describes, with its messages and
// without looking who uses it: for what a test or a demonstration made for itself.
func Wipe(ctx context.Context, conn Conn, t Topology) error {
	queues := sideBySide(conn, len(t.Queues), func(s *session, i int) error {
		_, err := deleteQueue(ctx, s, t.Queues[i].Name, false)
		return objectFailed(KindQueue, t.Queues[i].Name, err)
	})
	exchanges := sideBySide(conn, len(t.Exchanges), func(s *session, i int) error {
		return objectFailed(KindExchange, t.Exchanges[i].Name, deleteExchange(ctx, s, t.Exchanges[i].Name, false))
	})
	return errors.Join(errors.Join(queues...), errors.Join(exchanges...))
}

// objectFailed is the error of deleting an object, none if it is not there.
func objectFailed(kind Kind, name string, err error) error {
	if err == nil || isNotFound(err) {
		return nil
	}
	return &ObjectError{Kind: kind, Name: name, Op: "delete", Err: err}
}
