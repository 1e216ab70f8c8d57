package source

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// An arrow goes from a file to another one whose names it uses. The files of a package have an
// order in which most arrows go down; what few go up may be at most one in upwards. Only where there
// are manyArrows: in a small package everything is near.
const (
	manyArrows = 60
	upwards    = 10
)

func TestFilesReadDownwards(t *testing.T) {
	for _, dir := range packageFolders(t) {
		all := arrowsIn(t, dir)
		if len(all) < manyArrows {
			continue
		}
		up := arrowsUp(all)
		if len(up)*upwards > len(all) {
			t.Errorf("%s: %d of %d arrows go up, expected at most one in %d. Move what is used below what uses it:\n\t%s", dir, len(up), len(all), upwards, strings.Join(up, "\n\t"))
		}
	}
}

func TestArrowsUp(t *testing.T) {
	down := map[arrow][]string{{"a", "b"}: {"x"}, {"b", "c"}: {"y"}, {"a", "c"}: {"z"}}
	if up := arrowsUp(down); len(up) != 0 {
		t.Errorf("of files that read downwards: %v", up)
	}
	down[arrow{"c", "a"}] = []string{"w"}
	if up := arrowsUp(down); !slices.Equal(up, []string{"c -> a: w"}) {
		t.Errorf("of files of which one reads upwards: %v", up)
	}
}

type arrow struct{ from, to string }

// arrowsIn returns the arrows of a folder with the names that they stand for. That a method names its
// receiver's type is none.
func arrowsIn(t *testing.T, dir string) map[arrow][]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	checker := types.Config{Importer: noPackages{}, Error: func(error) {}}
	pkg, _ := checker.Check(dir, set, files, info) // the package's own names are found without others
	file := func(pos token.Pos) string { return filepath.Base(set.Position(pos).Filename) }
	receivers := map[token.Pos]bool{}
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				ast.Inspect(fn.Recv, func(n ast.Node) bool {
					if n != nil {
						receivers[n.Pos()] = true
					}
					return true
				})
			}
		}
	}
	arrows := map[arrow][]string{}
	for id, used := range info.Uses {
		_, method := used.(*types.Func)
		a := arrow{file(id.Pos()), ""}
		if used.Pkg() != pkg || receivers[id.Pos()] || !method && used.Parent() != pkg.Scope() {
			continue
		}
		if a.to = file(used.Pos()); a.to != a.from && !slices.Contains(arrows[a], used.Name()) {
			arrows[a] = append(arrows[a], used.Name())
		}
	}
	return arrows
}

// noPackages is an importer that has none.
type noPackages struct{}

func (noPackages) Import(string) (*types.Package, error) { return nil, errors.New("not looked at") }

// arrowsUp returns the arrows that go up in the order of the files that has fewest of them, as far as
// moving one file at a time finds it.
func arrowsUp(all map[arrow][]string) []string {
	files := map[string]bool{}
	for a := range all {
		files[a.from], files[a.to] = true, true
	}
	order := slices.Sorted(maps.Keys(files))
	up := func(order []string) (list []arrow) {
		at := map[string]int{}
		for i, f := range order {
			at[f] = i
		}
		for a := range all {
			if at[a.from] > at[a.to] {
				list = append(list, a)
			}
		}
		return list
	}
	fewest := up(order)
	for better := true; better; {
		better = false
		for i := range order {
			for j := range order {
				moved := slices.Delete(slices.Clone(order), i, i+1)
				moved = slices.Insert(moved, j, order[i])
				if list := up(moved); len(list) < len(fewest) {
					order, fewest, better = moved, list, true
				}
			}
		}
	}
	var texts []string
	for _, a := range fewest {
		texts = append(texts, fmt.Sprintf("%s -> %s: %s", a.from, a.to, strings.Join(slices.Sorted(slices.Values(all[a])), " ")))
	}
	return slices.Sorted(slices.Values(texts))
}
