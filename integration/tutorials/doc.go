// Package tutorials contains the programs of the tutorials in docs, and tests that follow each tutorial as a reader
// does: they write the files that it shows, type its commands in an empty folder, and compare what is printed.
package tutorials
