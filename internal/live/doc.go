// Package live reads and changes the objects on a broker.
//
//	broker.go           Broker, which plans changes
//	apply.go            applying a topology to a broker
//	report.go           what Apply reports for each object
//	ensure.go           Ensure, which is fast if a layout is complete, for clients that start often
//	lock.go             a lock, so that clients do not declare a layout at the same time
//	delete.go           deleting what a test has created
//	inspector.go        inspecting a broker over AMQP
//	leaderless.go       finding queues that have no leader
//	management.go       inspecting a broker through the management API
//	management_call.go  single requests to the management API
//	plugin.go           probing for the delayed message plugin
//	clock.go            the broker's time
//	canary.go           testing whether a broker delays messages until a given time
//	public.go           conversion to and from the public type of package topology/live
//
// Packages topology and plan decide what to declare.
package live
