// Package bench measures rabbitdelay beside what people would use instead, in
// one run on one broker: what is measured and its baseline take turns (A B A B),
// so that a busy machine slows both, and a claim is a ratio of the two. The
// baselines are plain programs in this package, with the same bodies, the same
// connection settings and the same number of messages in flight.
package bench
