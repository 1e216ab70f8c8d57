// Package clitest tests the program rabbitdelay in the way that an operator uses it, with scripts. Scripts are txtar
// files in the directory testdata/script of a command's package. docs/development.md describes how to write them.
//
// Cases that a script cannot express, such as an output that fails after some lines, are Go tests that call [Run] with
// a [Broker] and a database from [NewDB].
//
// Only tests import this package.
package clitest
