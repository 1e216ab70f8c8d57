package config

import "github.com/rabbitdelay/rabbitdelay/topology/naming"

// DidYouMean calls naming.DidYouMean.
func DidYouMean(word string, candidates []string) string { return naming.DidYouMean(word, candidates) }
