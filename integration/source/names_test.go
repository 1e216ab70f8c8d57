// Package source checks what holds for all packages and documents of the project, by reading
// them.
package source

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// conventional names mean the same on every type, and "equivalent" is RabbitMQ's word.
var conventional = []string{"close", "stop", "equivalent"}

// An unexported function or method shares its name within its package only with those of
// its signature, as the methods of an interface do: two signatures are two meanings.
func TestNamesHaveOneMeaning(t *testing.T) {
	for _, dir := range packageFolders(t) {
		for name, places := range namesIn(t, dir) {
			if len(places) > 1 && !slices.Contains(conventional, name) {
				var texts []string
				for signature, receiver := range places {
					texts = append(texts, cmp.Or(receiver, "func")+signature)
				}
				t.Errorf("%s: %s has more than one meaning; give each a name of its own:\n\t%s", dir, name, strings.Join(texts, "\n\t"))
			}
		}
	}
}

// packageFolders returns the folders of the product.
func packageFolders(t *testing.T) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir():
			return err
		case dir == "integration" || d.Name() == "testdata" || dir != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		}
		dirs = append(dirs, dir)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// namesIn returns the signatures of the unexported functions and methods of a folder, each
// with one of its receivers.
func namesIn(t *testing.T, dir string) map[string]map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Name.IsExported() || fn.Name.Name == "init" {
				continue
			}
			if names[fn.Name.Name] == nil {
				names[fn.Name.Name] = map[string]string{}
			}
			names[fn.Name.Name][signature(fn.Type)] = receiver(fn.Recv)
		}
	}
	return names
}

// receiver returns the name of a receiver's type; empty for a function.
func receiver(list *ast.FieldList) string {
	if list == nil {
		return ""
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(list.List[0].Type), "*"), "[")
	return name
}

// signature returns the types of parameters and results.
func signature(f *ast.FuncType) string {
	typesOf := func(list *ast.FieldList) string {
		var out []string
		for _, field := range list.List {
			for range max(1, len(field.Names)) {
				out = append(out, types.ExprString(field.Type))
			}
		}
		return "(" + strings.Join(out, ", ") + ")"
	}
	text := typesOf(f.Params)
	if f.Results != nil {
		text += " " + typesOf(f.Results)
	}
	return text
}
