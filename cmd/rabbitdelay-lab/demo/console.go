package demo

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// openConsole shows the stories to this machine, as an application would that mounts
// the console, until the demo ends.
func (s *stage) openConsole(ctx context.Context) error {
	cfg := console.Config{
		Title: "rabbitdelay demo", Look: s.look, Logger: s.Logger(),
		Client: func() (*amqpx.Client, error) { return s.clients[0], nil },
	}
	if s.tasks != nil {
		cfg.Store, cfg.DB = s.tasks, s.db
	}
	c, err := console.New(cfg)
	if err != nil {
		return err
	}
	s.later(c.Close)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: c, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(l) }() // until it is closed
	s.later(func(context.Context) error { return server.Close() })
	s.Notef("console: http://%s/", l.Addr())
	return nil
}

// look returns what the console looks at the broker with.
func (s *stage) look(ctx context.Context) (src status.Source, err error) {
	c := *s.cfg
	c.Broker.ConnectionName = s.name + " console"
	strategy, err := c.Strategy(ctx, s.Logger())
	if err != nil {
		return src, err
	}
	src.Want.Prefix = c.Delay.Prefix
	if src.Want.Want, err = c.Describe(strategy); err != nil {
		return src, err
	}
	src.Broker.Dial, src.Broker.ConnectionName = c.Dial, c.Broker.ConnectionName
	src.Broker.Management, err = c.Management()
	if errors.Is(err, config.ErrNoManagement) {
		err = nil
	}
	return src, err
}

// hold keeps the console open until the demo is interrupted, and what is scheduled
// there happens.
func (s *stage) hold(ctx context.Context) error {
	if !s.Hold {
		return nil
	}
	s.Notef("the console stays open; Ctrl-C ends the demo and removes what it made")
	all, working := errgroup.WithContext(ctx)
	s.work(working, all)
	if err := all.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	<-ctx.Done()
	return nil
}
