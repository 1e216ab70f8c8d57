package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
)

// job is one of the programs that expire an order after 30 minutes unless it is paid.
type job struct {
	name    string // the name of the contender
	dir     string
	library string // the modules of the tool begin with this path
	servers []string
	inTx    string // whether placing an order and its timer is one transaction
}

var jobs = []job{
	{"rabbitdelay", "job/rabbitdelay", "github.com/rabbitdelay/rabbitdelay/amqpx", []string{"PostgreSQL", "RabbitMQ"}, "yes"},
	{"River", "job/river", "github.com/riverqueue/river", []string{"PostgreSQL"}, "yes"},
	{"asynq", "job/asynq", "github.com/hibiken/asynq", []string{"PostgreSQL", "Redis"}, "no"},
}

// jobsTable compares the programs. It reads their sources, which are below the current directory.
func jobsTable() (grid, error) {
	t := grid{{"one job", "lines", "names of the tool that it uses", "in the order's transaction", "servers"}}
	for _, j := range jobs {
		lines, err := linesOf(filepath.Join(j.dir, "main.go"))
		if err != nil {
			return nil, err
		}
		names, err := namesOf(j.dir, j.library)
		if err != nil {
			return nil, err
		}
		t = append(t, []string{j.name, strconv.Itoa(lines), strconv.Itoa(len(names)), j.inTx, strings.Join(j.servers, ", ")})
	}
	return t, nil
}

// linesOf counts the lines of a file that have code, without imports.
func linesOf(file string) (int, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	lines := map[int]bool{}
	for _, d := range parsed.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			continue
		}
		begin, end := fset.Position(d.Pos()).Line, fset.Position(d.End()).Line
		for i, line := range strings.Split(string(src), "\n")[begin-1 : end] {
			if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "//") {
				lines[begin+i] = true
			}
		}
	}
	return len(lines), nil
}

// namesOf returns the exported names of a library that the package in a folder uses: functions, types, methods, fields
// and variables.
func namesOf(dir, library string) ([]string, error) {
	const mode = packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedImports | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedExportFile
	loaded, err := packages.Load(&packages.Config{Mode: mode}, "./"+dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range loaded {
		for _, err := range p.Errors {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		for _, used := range p.TypesInfo.Uses {
			if of := used.Pkg(); of != nil && of.Path() != p.PkgPath && strings.HasPrefix(of.Path(), library) && used.Exported() {
				if _, isPackage := used.(*types.PkgName); !isPackage {
					names = append(names, of.Path()+"."+used.Name())
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
