package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

const (
	base = "/api/v1"
	// maxBody is the size limit of a request that contains tasks: many of them, or a single one with a large body, which
	// base64 makes a third longer. Reading a request takes four times its size in memory.
	maxBody  = 24 << 20
	maxSmall = 64 << 10
	// slowest is the timeout for reading the body of a request.
	slowest = 30 * time.Second
)

type api struct {
	huma.API

	svc *service.Core
	log *zap.Logger
}

// op returns an operation with the defaults of all operations, after applying the given changes to it.
func op(method, at, id, tag, summary string, change ...func(*huma.Operation)) huma.Operation {
	o := huma.Operation{
		OperationID: id, Method: method, Path: base + at, Summary: summary, Tags: []string{tag},
		MaxBodyBytes: maxSmall, BodyReadTimeout: slowest,
		Errors: []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity, http.StatusServiceUnavailable, http.StatusInternalServerError},
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

// large raises the body limit of an operation whose requests contain tasks.
func large(o *huma.Operation) {
	o.MaxBodyBytes = maxBody
	o.Errors = append(o.Errors, http.StatusRequestEntityTooLarge)
}

// body is a response with a body of type T.
type body[T any] struct{ Body T }

// answer converts a result of the service to a response.
func answer[T any](a *api, v T, err error) (*body[T], error) {
	if err != nil {
		return nil, a.problem(err)
	}
	return &body[T]{v}, nil
}

func who(ctx context.Context) service.Identity { return service.CallerOf(ctx).Identity }
