package api

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

// Register adds the operations to mux, below /api. The prefix precedes their paths in the OpenAPI document.
func Register(mux *http.ServeMux, svc *service.Core, prefix, version string, log *zap.Logger) huma.API {
	cfg := huma.DefaultConfig("rabbitdelay", version)
	cfg.Info.Description = "View and change delayed messages and durable tasks. Times are in RFC 3339 format in UTC; durations look like 90s, 30m or 7d. " +
		"Errors are application/problem+json (RFC 9457); errors[].location names the field. Viewers can read everything except bodies and most header values. Only operators can make changes."
	cfg.OpenAPIPath, cfg.DocsPath, cfg.SchemasPath = "/api/openapi", "", ""
	cfg.CreateHooks = nil // huma would add links to schemas to the responses
	cfg.RejectUnknownQueryParameters = true
	cfg.Formats = map[string]huma.Format{}
	for _, name := range []string{"application/json", "json"} {
		cfg.Formats[name] = huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: decode}
	}
	exactNames()
	cfg.Transformers = append(cfg.Transformers, bounded, located)
	cfg.Servers = []*huma.Server{{URL: prefix + "/"}}
	if prefix != "" {
		cfg.Servers[0].URL = prefix
	}
	cfg.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	cfg.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"token":   {Type: "http", Scheme: "bearer", Description: "A token that \"rabbitdelay users token\" created."},
		"session": {Type: "apiKey", In: "cookie", Name: "rabbitdelay_session", Description: "The session of a user who has logged in. Over TLS the cookie's name begins with __Host-, or with __Secure- below a path prefix."},
	}
	cfg.Security = []map[string][]string{{"token": {}}, {"session": {}}}
	a := &api{API: humago.New(mux, cfg), svc: svc, log: log}
	a.UseMiddleware(a.exactQuery)
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

// exactQuery rejects queries from which net/url would drop something: a malformed part, or all values of a parameter
// except the first. Otherwise a list could contain entries that the caller has not asked for.
func (a *api) exactQuery(ctx huma.Context, next func(huma.Context)) {
	u := ctx.URL()
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		_ = huma.WriteErr(a, ctx, http.StatusBadRequest, "the query is malformed: "+err.Error()) // an error here means that the client has gone away
		return
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if n := len(query[name]); n > 1 {
			_ = huma.WriteErr(a, ctx, http.StatusUnprocessableEntity, "validation failed", &huma.ErrorDetail{Location: "query." + name, Message: fmt.Sprintf("given %d times; expected it once", n)})
			return
		}
	}
	next(ctx)
}

// allowNull declares in the OpenAPI document that a pointer to a struct may be null. huma itself does not do that.
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

// schemaName returns the name of a type in the OpenAPI document. The package's name precedes it, except for types of
// the packages that define requests and responses.
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
