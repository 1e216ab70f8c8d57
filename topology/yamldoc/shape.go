package yamldoc

import (
	"go.yaml.in/yaml/v3"
)

// Shape is what a value may be, as the functions that read it have said.
type Shape struct {
	Kind    Kind
	Null    bool              // it may be left empty
	Fields  map[string]*Shape // of Object
	Item    *Shape            // of List
	Meaning string
	Default string
}

// Kind is the kind of a value.
type Kind string

// Kinds of values.
const (
	Any      Kind = "any"
	Object   Kind = "object"  // with Fields
	Table    Kind = "table"   // a mapping with any keys
	List     Kind = "list"    // of Item
	Text     Kind = "text"    // in YAML, too: a number has to be in quotes
	Scalar   Kind = "scalar"  // any single value, read as text
	Boolean  Kind = "boolean" // true or false
	Integer  Kind = "integer"
	Number   Kind = "number"
	Duration Kind = "duration" // such as 30m
)

// Describe calls the functions that read a document's keys, for them to tell what
// they read instead of reading it. They must begin with Mapping, List, Entries or
// Describing. What they do besides is to be thrown away.
func (r *Reader) Describe(fields map[string]Field) *Shape {
	s := &Shape{Kind: Any}
	r.shape = s
	r.Mapping(&yaml.Node{}, "", fields)
	r.shape = nil
	return s
}

// Describing reports whether the reader wants to know what a function reads, and
// notes the kind. The function is to return then.
func (r *Reader) Describing(k Kind) bool {
	if r.shape == nil {
		return false
	}
	r.shape.Kind = k
	return true
}

// Explain adds words to what is being described.
func (r *Reader) Explain(meaning, byDefault string) {
	if r.shape != nil {
		r.shape.Meaning, r.shape.Default = meaning, byDefault
	}
}

// MayBeNull records that what is being described may be left empty.
func (r *Reader) MayBeNull() {
	if r.shape != nil {
		r.shape.Null = true
	}
}

// below describes what a function reads inside of the value that is being described.
func (r *Reader) below(path string, read Field) *Shape {
	outer, s := r.shape, &Shape{Kind: Any}
	r.shape = s
	read(&yaml.Node{}, path)
	r.shape = outer
	return s
}
