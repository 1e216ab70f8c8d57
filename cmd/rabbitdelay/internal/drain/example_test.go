package drain_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/drain"
	"github.com/rabbitdelay/rabbitdelay/dlx"
)

// A program that runs on the broker's node passes rabbitmqctl as the shell. In this example, the shell is a fake table
// with one message that is due too soon to be moved.
func ExampleRun() {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	s, err := dlx.NewBucket(dlx.BucketConfig{Layout: dlx.LayoutHex})
	if err != nil {
		log.Fatal(err)
	}
	client, err := amqpx.Open(context.Background(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Strategy: s})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	dir, err := os.MkdirTemp("", "drain")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	rabbitmqctl := func(context.Context, string) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(`{"node":"cmFiYml0QGE=","now":1795399963926,"rows":1,"elsewhere":0,"has_queue":true}
{"end":true,"soon":1,"other":0}
`)), nil
	}
	report, err := drain.Run(context.Background(), drain.Config{
		Client: client, Shell: rabbitmqctl, State: filepath.Join(dir, "state"), Vhost: "/", User: "guest", Prefix: "delay",
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Node, report.Found, report.Sent, report.Soon)
	// Output: rabbit@a 1 0 1
}
