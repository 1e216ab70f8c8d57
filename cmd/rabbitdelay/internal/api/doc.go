// Package api implements the console's HTTP API for programs in any language: the operations, their OpenAPI document,
// and the JSON of requests. The JSON of responses is defined in package asjson. The handler in front of the API decides
// what a caller may do, and the service checks the caller's role again before it changes anything.
//
// api.go registers the operations, which are in tasks.go, bulk.go, recurring.go, dead.go, now.go and records.go.
// operation.go contains their common parts, values.go reads requests, and problem.go converts errors to responses.
package api
