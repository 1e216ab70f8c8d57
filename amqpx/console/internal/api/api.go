package api

import (
	"context"
	"net/http"
	"path"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
)

const (
	base = "/api/v1"
	// maxBody bounds a request for one task, whose body may be 1 MiB or what the
	// store takes, in base64, or for many tasks. It takes four times as much memory.
	maxBody  = 24 << 20
	maxSmall = 64 << 10
	// slowest is how long the body of a request may take.
	slowest = 30 * time.Second
)

type api struct {
	huma.API

	svc *service.Core
	log *zap.Logger
}

// Register adds the operations to mux, below /api. Prefix comes before the paths outside.
func Register(mux *http.ServeMux, svc *service.Core, prefix, version string, log *zap.Logger) huma.API {
	cfg := huma.DefaultConfig("rabbitdelay", version)
	cfg.Info.Description = "See and change delayed messages and durable tasks. Instants are RFC 3339 in UTC, durations such as 90s, 30m or 7d. " +
		"Errors are application/problem+json (RFC 9457); errors[].location names the field. Viewers can read everything but bodies and header values; changes need an operator."
	cfg.OpenAPIPath, cfg.DocsPath, cfg.SchemasPath = "/api/openapi", "", ""
	cfg.CreateHooks = nil // no links to schemas in answers
	cfg.RejectUnknownQueryParameters = true
	cfg.Transformers = append(cfg.Transformers, bounded, located)
	cfg.Servers = []*huma.Server{{URL: prefix + "/"}}
	if prefix != "" {
		cfg.Servers[0].URL = prefix
	}
	cfg.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	cfg.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"token":   {Type: "http", Scheme: "bearer", Description: "made by rabbitdelay users token"},
		"session": {Type: "apiKey", In: "cookie", Name: "rabbitdelay_session"},
	}
	cfg.Security = []map[string][]string{{"token": {}}, {"session": {}}}
	a := &api{API: humago.New(mux, cfg), svc: svc, log: log}
	a.tasks()
	a.bulk()
	a.recurring()
	a.held()
	a.now()
	a.dead()
	a.records()
	allowNull(a.OpenAPI().Components.Schemas)
	return a.API
}

// allowNull adds to the document that a pointer to a struct may be null, which huma leaves out.
func allowNull(schemas huma.Registry) {
	for name, s := range schemas.Map() {
		t := schemas.TypeFromRef("#/components/schemas/" + name)
		for f := range t.Fields() {
			field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			p := s.Properties[field]
			if p != nil && p.Ref != "" && f.Type.Kind() == reflect.Pointer && options == "" {
				s.Properties[field] = &huma.Schema{AnyOf: []*huma.Schema{p, {Type: "null"}}, Description: p.Description}
			}
		}
	}
}

// schemaName returns the name of a type in the document. Types of other packages than those of
// answers have their package's name in front.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if pkg := path.Base(t.PkgPath()); t.Name() != "" && pkg != "." && pkg != "api" && pkg != "asjson" && pkg != "huma" {
		name = strings.ToUpper(pkg[:1]) + pkg[1:] + name
	}
	return name
}

// op returns an operation.
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

// large allows bodies with tasks in them.
func large(o *huma.Operation) {
	o.MaxBodyBytes = maxBody
	o.Errors = append(o.Errors, http.StatusRequestEntityTooLarge)
}

// body is an answer.
type body[T any] struct{ Body T }

// answer returns what the service returned as an answer.
func answer[T any](a *api, v T, err error) (*body[T], error) {
	if err != nil {
		return nil, a.problem(err)
	}
	return &body[T]{v}, nil
}

func who(ctx context.Context) service.Identity { return service.CallerOf(ctx).Identity }
