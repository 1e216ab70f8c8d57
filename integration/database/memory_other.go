//go:build !linux

package database

func inMemory() string { return "" }
