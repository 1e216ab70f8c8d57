package live

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// StatusError reports an answer of the management API with a status other than success.
type StatusError struct {
	Path string
	Code int    // HTTP status
	Body []byte // the beginning of the response body
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: expected status 200, got %d %s", e.Path, e.Code, http.StatusText(e.Code))
}

// AnswerError means that an answer could not be decoded, because it is incomplete, or because it was sent by something
// other than the management API, such as a proxy or a login page.
type AnswerError struct {
	Path string
	Type string // the content type of the answer; empty if it had none
	Err  error  // from decoding the answer
}

func (e *AnswerError) Error() string {
	kind := "without a content type"
	switch {
	case strings.Contains(e.Type, "json"):
		return fmt.Sprintf("%s: the answer is incomplete or has an unexpected form: %v", e.Path, e.Err)
	case e.Type != "":
		kind = "of type " + e.Type
	}
	return fmt.Sprintf("%s: the answer %s is not the management API's JSON (%v); is this the address of the management API, or of a proxy that does not reach it?", e.Path, kind, e.Err)
}

// Unwrap returns the error from decoding the answer.
func (e *AnswerError) Unwrap() error { return e.Err }

// IsDenied reports whether the management API denied access. It answers 401 to users without the required tag.
func IsDenied(err error) bool {
	e, ok := errors.AsType[*StatusError](err)
	return ok && (e.Code == http.StatusUnauthorized || e.Code == http.StatusForbidden)
}

// Failure describes how the management API reacted to a call that failed, as the end of a sentence, such as "did not
// answer" or "refuses this user".
func Failure(err error) string {
	if IsDenied(err) {
		return "refuses this user"
	}
	if _, answered := errors.AsType[*StatusError](err); answered {
		return "answered with an error"
	}
	if _, other := errors.AsType[*AnswerError](err); other {
		return "answered with something else"
	}
	return "did not answer"
}

// ClusterError means that the management API and the AMQP connection belong to different brokers.
type ClusterError struct {
	Endpoint         string
	AMQP, Management string // names of the clusters
}

func (e *ClusterError) Error() string {
	return fmt.Sprintf("AMQP connects to the cluster %q, but the management API at %s belongs to %q; set broker.management_url to the first cluster's API",
		e.AMQP, e.Endpoint, e.Management)
}

// SameCluster checks that an AMQP connection and the management API belong to the same cluster. If the cluster has no
// configured name (cluster_name), each node reports its own name over AMQP, so a name that differs from the API's
// cluster name is accepted if one of the API's nodes has it. Otherwise, or if the user is not allowed to list the
// nodes, SameCluster briefly declares an exclusive queue and checks that the API shows it. If the API does not show the
// queue, SameCluster returns a *ClusterError.
func (m *Management) SameCluster(ctx context.Context, conn *amqp.Connection) error {
	var overview struct {
		Name string `json:"cluster_name"`
	}
	if _, err := m.Call(ctx, http.MethodGet, "/api/overview?columns=cluster_name", nil, &overview); err != nil {
		return err
	}
	name, _ := conn.Properties["cluster_name"].(string)
	if name == "" || overview.Name == "" || name == overview.Name {
		return nil
	}
	if same, err := m.hasNode(ctx, name); same || err != nil && !IsDenied(err) {
		return err
	}
	if same, err := m.showsQueueOf(ctx, conn); same || err != nil {
		return err
	}
	return &ClusterError{Endpoint: m.Endpoint(), AMQP: name, Management: overview.Name}
}

// hasNode reports whether the API's cluster has a node with this default cluster name. Over AMQP a node reports its
// own name, with the fully qualified host name.
func (m *Management) hasNode(ctx context.Context, name string) (bool, error) {
	var nodes []struct {
		Name string `json:"name"`
	}
	if _, err := m.Call(ctx, http.MethodGet, "/api/nodes?columns=name", nil, &nodes); err != nil {
		return false, err
	}
	return slices.ContainsFunc(nodes, func(n struct {
		Name string `json:"name"`
	}) bool {
		return name == n.Name || strings.HasPrefix(name, n.Name+".")
	}), nil
}

// showsQueueOf declares a temporary queue on the connection, and reports whether the API shows it. It does not fail if
// the connection's user is not allowed to declare one.
func (m *Management) showsQueueOf(ctx context.Context, conn *amqp.Connection) (there bool, err error) {
	refused := wait.Done(ctx, func() error {
		ch, err := channels.Open(conn)
		if err != nil {
			return err
		}
		defer func() { _ = ch.Close() }() // the broker may already have closed it
		q, err := ch.QueueDeclare("", false, true, true, false, nil)
		if err != nil {
			return err
		}
		found, err := m.Queue(ctx, q.Name)
		there = err == nil && found != nil
		_, _ = ch.QueueDelete(q.Name, false, false, false) // if this fails, the queue is deleted with the connection
		return nil
	})
	if refused != nil {
		return false, context.Cause(ctx)
	}
	return there, nil
}

const maxErrorBody = 64 << 10

// Vhost returns the configured virtual host.
func (m *Management) Vhost() string { return m.cfg.Vhost }

// Endpoint returns the address, without user and password, of the node that answered last. Before the first call it
// is the node that will be asked first.
func (m *Management) Endpoint() string { return m.endpoints[m.at.Load()].url }

// Each returns one Management for each configured node. Each of them uses only that node's API.
func (m *Management) Each() []*Management {
	all := make([]*Management, len(m.endpoints))
	for i, e := range m.endpoints {
		all[i] = &Management{endpoints: []endpoint{e}, cfg: m.cfg}
	}
	return all
}

// InVhost returns the path of objects in the virtual host, as in InVhost("queues") + "?columns=name".
func (m *Management) InVhost(kind string, names ...string) string {
	words := []string{"/api", kind, url.PathEscape(m.cfg.Vhost)}
	for _, n := range names {
		words = append(words, url.PathEscape(n))
	}
	return strings.Join(words, "/")
}

// RoundTrip contains the times of a request: when it was sent, when its answer was received, and the broker's time in
// the answer, in whole seconds. Date is zero if the answer does not contain a time.
type RoundTrip struct{ Sent, Received, Date time.Time }

// Call sends a request to a path such as "/api/overview". It encodes body as JSON unless it is nil, and decodes the
// answer into out unless that is nil. ManagementConfig.Timeout bounds the call. An answer with a status other than
// success is a *StatusError. If there are several nodes, Call tries the next one when a node does not answer. It does
// not repeat a request that may already have changed something.
func (m *Management) Call(ctx context.Context, method, path string, body, out any) (RoundTrip, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	var sent []byte
	if body != nil {
		var err error
		if sent, err = json.Marshal(body); err != nil {
			return RoundTrip{}, err
		}
	}
	first, n := int(m.at.Load()), len(m.endpoints)
	var failed []error
	for i := range n {
		at := (first + i) % n
		x, answered, err := m.ask(ctx, m.endpoints[at], n-i, method, path, sent, out)
		if answered {
			m.at.Store(int32(at)) // the index of an endpoint fits into 32 bits
			return x, err
		}
		failed = append(failed, err)
		op, network := errors.AsType[*net.OpError](err)
		neverSent := network && op.Op == "dial" // the connection failed, so no request was sent
		if ctx.Err() != nil || method != http.MethodGet && !neverSent {
			break
		}
	}
	return RoundTrip{}, errors.Join(failed...)
}

// ask sends a request to one node. The time limit is divided equally among this node and the remaining ones.
func (m *Management) ask(ctx context.Context, e endpoint, left int, method, path string, sent []byte, out any) (x RoundTrip, answered bool, err error) {
	if deadline, ok := ctx.Deadline(); ok && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, method, e.url+path, bytes.NewReader(sent))
	if err != nil {
		return x, false, err
	}
	if sent != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.SetBasicAuth(e.username, e.password)
	req.Close = true // leave no idle connection behind
	x.Sent = time.Now()
	resp, err := (&http.Client{Transport: m.cfg.Transport}).Do(req)
	if err != nil {
		return x, false, err
	}
	defer func() { _ = resp.Body.Close() }() // the body has been read, or another error is reported
	x.Received = time.Now()
	x.Date, _ = http.ParseTime(resp.Header.Get("Date")) // zero if the header is missing
	if resp.StatusCode/100 != 2 {
		var b bytes.Buffer
		_, _ = b.ReadFrom(io.LimitReader(resp.Body, maxErrorBody)) // use as much of the body as can be read
		return x, true, &StatusError{Path: path, Code: resp.StatusCode, Body: b.Bytes()}
	}
	if out == nil {
		return x, true, nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		if ctx.Err() != nil {
			return x, false, err // the answer was not received completely in time
		}
		return x, true, &AnswerError{Path: path, Type: resp.Header.Get("Content-Type"), Err: err}
	}
	return x, true, nil
}
