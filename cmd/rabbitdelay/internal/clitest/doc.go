// Package clitest tests the program rabbitdelay as an operator uses it: by scripts, which are txtar files in
// testdata/script beside the package of a command. docs/development.md describes how to write one.
//
// What a script cannot express, such as an output that fails after some lines, is a Go test that calls
// [Run] with a [Broker] and a database of [NewDB].
//
// Only tests import this package.
package clitest
