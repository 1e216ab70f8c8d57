// Package api is the console's HTTP API, for programs in any language: operations, their
// OpenAPI document, and the JSON of requests. The JSON of answers is that of package asjson.
// Who may call what is decided in front of it, and again by the service.
//
// api.go registers the operations, which tasks.go, bulk.go, recurring.go, dead.go, now.go and
// records.go hold; operation.go is what they have in common, values.go reads requests, problem.go
// turns errors into answers.
package api
