package yamldoc

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// Shape describes the values that the functions which read a document accept.
type Shape struct {
	Kind   Kind
	Null   bool              // whether the value may be left empty
	Fields map[string]*Shape // for Object
	// Extensible reports whether keys of an Object that begin with x- are ignored. Below the top level, this does not
	// apply to the reader's Reserved keys.
	Extensible bool
	Item       *Shape // for List
	Meaning    string
	Default    string
}

// Kind is a value's type in a Shape.
type Kind string

// These are the kinds of values.
const (
	Any      Kind = "any"
	Object   Kind = "object"  // with Fields
	Table    Kind = "table"   // a mapping with any keys
	List     Kind = "list"    // a list of Item
	Text     Kind = "text"    // a string in YAML, so a number must be quoted
	Scalar   Kind = "scalar"  // any single value, read as a string
	Boolean  Kind = "boolean" // true or false
	Integer  Kind = "integer"
	Number   Kind = "number"
	Duration Kind = "duration" // such as 30m
)

// Describe calls the functions that read a document's keys, and makes them describe what they read instead of reading
// it. Each function must begin with a call to Mapping, List, Entries or Describing. Discard any other effects that they
// have.
func (r *Reader) Describe(fields map[string]Field) *Shape {
	s := &Shape{Kind: Any}
	r.shape = s
	r.Mapping(&yaml.Node{}, "", fields)
	r.shape = nil
	return s
}

// Describing reports whether the reader is collecting a description, and records the kind. If it returns true, the
// calling function must return.
func (r *Reader) Describing(k Kind) bool {
	if r.shape == nil {
		return false
	}
	r.shape.Kind = k
	return true
}

// Explain sets the meaning and the default of the value being described.
func (r *Reader) Explain(meaning, byDefault string) {
	if r.shape != nil {
		r.shape.Meaning, r.shape.Default = meaning, byDefault
	}
}

// MayBeNull records that the value being described may be left empty.
func (r *Reader) MayBeNull() {
	if r.shape != nil {
		r.shape.Null = true
	}
}

// below describes the value that a function reads inside the value being described.
func (r *Reader) below(path string, read Field) *Shape {
	outer, s := r.shape, &Shape{Kind: Any}
	r.shape = s
	read(&yaml.Node{}, path)
	r.shape = outer
	return s
}

// at returns the description of the value at a path of keys, or nil.
func (s *Shape) at(path string) *Shape {
	for key := range strings.SplitSeq(path, ".") {
		if s == nil {
			return nil
		}
		s = s.Fields[key]
	}
	return s
}

func (s *Shape) has(key string) bool { return s != nil && s.Fields[key] != nil }

// find appends the paths of the mappings that have a key. The path of a list's items is the list's path followed by [].
func (s *Shape) find(key, path string, parents *[]string) {
	if s == nil {
		return
	}
	if s.Item != nil {
		s.Item.find(key, path+"[]", parents)
	}
	for name, field := range s.Fields {
		if name == key && path != "" {
			*parents = append(*parents, path)
		}
		field.find(key, strings.TrimPrefix(path+"."+name, "."), parents)
	}
}
