// Package source checks rules for all packages and documents of the project by reading them.
package source

import (
	"bytes"
	"flag"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module, golden = "github.com/rabbitdelay/rabbitdelay", "integration/source/testdata/api.txt"

var update = flag.Bool("update", false, "write "+golden)

// betweenPackages lists the exported names that mention internal types on purpose, with the packages that use them.
var betweenPackages = map[string]string{
	"topology.YAMLFields":    "config, which reads the same document",
	"amqpx.Client.Internals": "amqpx/inspect",
	"amqpx.Config.Internals": "amqpx/inspect",
}

// The exported API is recorded in a file, so that it does not change unnoticed, and no part of it
// mentions a type that other modules cannot name.
func TestAPI(t *testing.T) {
	m := &moduleTypes{fset: token.NewFileSet(), pkgs: map[string]*types.Package{}, files: map[string][]*ast.File{}}
	var api []string
	for _, dir := range publicPackages(t) {
		p, err := m.Import(module + "/" + dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				for _, text := range hidden(o) {
					name, _, _ := strings.Cut(dir+"."+text, " ")
					if betweenPackages[name] == "" {
						t.Errorf("%s.%s; others cannot name it: give it a public type, or unexport it", dir, text)
					}
				}
			}
		}
		for _, f := range m.files[p.Path()] {
			for _, line := range m.exported(f) {
				api = append(api, dir+": "+line)
			}
		}
	}
	slices.Sort(api)
	api = slices.Compact(api)
	if *update {
		if err := os.WriteFile(golden, []byte(strings.Join(api, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	before := strings.Split(strings.TrimSpace(string(text)), "\n")
	if diff := without(before, api, "- ") + without(api, before, "+ "); diff != "" {
		t.Errorf("the public API has changed:\n%sIf that is on purpose, run \"go test ./integration/source -run TestAPI -update\" and commit %s.", diff, golden)
	}
}

// publicPackages returns the directories of packages that other modules can import and use.
func publicPackages(t *testing.T) (dirs []string) {
	t.Helper()
	apart := []string{"internal", "testdata", "cmd", "integration", "docs"}
	err := filepath.WalkDir(".", func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir() || dir == ".":
			return err
		case slices.Contains(apart, d.Name()) || d.Name()[0] == '.':
			return fs.SkipDir
		}
		if _, err := build.ImportDir(dir, 0); err == nil {
			dirs = append(dirs, filepath.ToSlash(dir))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// moduleTypes has the types of this module's packages. The types of other modules are not loaded. That is not
// necessary, because they are not internal, and their names are in the source.
type moduleTypes struct {
	fset  *token.FileSet
	pkgs  map[string]*types.Package
	files map[string][]*ast.File
}

// Import implements types.Importer.
func (m *moduleTypes) Import(pkg string) (*types.Package, error) {
	if p := m.pkgs[pkg]; p != nil {
		return p, nil
	}
	dir, ours := strings.CutPrefix(pkg, module+"/")
	if !ours {
		return nil, fs.ErrNotExist
	}
	b, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	for _, name := range b.GoFiles {
		f, err := parser.ParseFile(m.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		m.files[pkg] = append(m.files[pkg], f)
	}
	c := types.Config{Importer: m, IgnoreFuncBodies: true, Error: func(error) {}}
	p, _ := c.Check(pkg, m.fset, m.files[pkg], nil) // its errors concern packages that are not loaded
	m.pkgs[pkg] = p
	return p, nil
}

// exported returns a line for each exported declaration in a file, and a line for each field or method with the first
// line in front.
func (m *moduleTypes) exported(f *ast.File) (lines []string) {
	ast.FileExports(f)
	add := func(node any) {
		var text bytes.Buffer
		_ = printer.Fprint(&text, m.fset, node) // writing to memory never fails
		first, rest, _ := strings.Cut(text.String(), "\n")
		lines = append(lines, first)
		for line := range strings.Lines(rest) {
			if words := strings.Join(strings.Fields(line), " "); words != "" && words != "}" && !strings.HasPrefix(words, "//") {
				lines = append(lines, first+" "+words)
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if of := receiver(d.Recv); of == "" || ast.IsExported(of) {
				add(&ast.FuncDecl{Recv: d.Recv, Name: d.Name, Type: d.Type})
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					s = &ast.ValueSpec{Names: v.Names, Type: v.Type}
				}
				if d.Tok != token.IMPORT {
					add(&ast.GenDecl{Tok: d.Tok, Specs: []ast.Spec{s}})
				}
			}
		}
	}
	return lines
}

// hidden returns the parts of an object whose types contain a type of an internal package.
func hidden(o types.Object) (all []string) {
	note := func(name string, t types.Type) {
		if text := types.TypeString(types.Unalias(t), nil); strings.Contains(text, "/internal/") {
			all = append(all, name+" mentions an internal type: "+text)
		}
	}
	named, ok := o.Type().(*types.Named)
	if tn, is := o.(*types.TypeName); !is || tn.IsAlias() || !ok {
		note(o.Name(), o.Type())
		return all
	}
	if s, ok := named.Underlying().(*types.Struct); ok {
		for f := range s.Fields() {
			if f.Exported() {
				note(o.Name()+"."+f.Name(), f.Type())
			}
		}
	} else {
		note(o.Name(), named.Underlying())
	}
	for f := range named.Methods() {
		if f.Exported() {
			note(o.Name()+"."+f.Name(), f.Signature())
		}
	}
	return all
}

// without returns the lines that are not in the sorted list other, each with sign in front.
func without(lines, other []string, sign string) string {
	var text strings.Builder
	for _, line := range lines {
		if _, there := slices.BinarySearch(other, line); !there {
			text.WriteString(sign + line + "\n")
		}
	}
	return text.String()
}

// receiver returns the name of a receiver's type, or an empty string for a function.
func receiver(list *ast.FieldList) string {
	if list == nil {
		return ""
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(list.List[0].Type), "*"), "[")
	return name
}
