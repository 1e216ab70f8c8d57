package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

func typeOf(field any) string {
	switch field.(type) {
	case *URL:
		return "URL"
	case *[]URL:
		return "list of URLs"
	case *[]int:
		return "list of integers"
	case *[]time.Duration:
		return "list of durations"
	case *bool:
		return "true or false"
	case *int:
		return "integer"
	case *time.Duration:
		return "duration"
	}
	return "text"
}

// isList reports whether a setting takes several values.
func isList(field any) bool {
	switch field.(type) {
	case *[]URL, *[]int, *[]time.Duration:
		return true
	}
	return false
}

// errEmpty is for a value that was given and is empty, most often because a variable in it is
// not set. Its default would be a surprise.
var errEmpty = errors.New("is empty; give a value, or leave it out for the default")

// parse reads the text of a setting into its field. It refuses a single value that was given
// and is empty. Its errors never contain the text of a URL.
func parse(field any, texts []string, given bool) error {
	switch f := field.(type) {
	case *[]URL:
		return parseList(f, texts, func(s string) (URL, error) { return URL(s), nil })
	case *[]int:
		return parseList(f, texts, parseInt)
	case *[]time.Duration:
		return parseList(f, texts, topology.ParseDuration)
	}
	if len(texts) != 1 {
		return fmt.Errorf("expected one value, got %d", len(texts))
	}
	text := texts[0]
	if given && text == "" {
		return errEmpty
	}
	var err error
	switch f := field.(type) {
	case *string:
		*f = text
	case *URL:
		*f = URL(text)
	case *Secret:
		*f = Secret(text)
	case *topology.QueueType:
		*f = topology.QueueType(text)
	case *amqpx.Declaration:
		*f = amqpx.Declaration(text)
	case *bool:
		*f, err = parseBool(text)
	case *int:
		*f, err = parseInt(text)
	case *time.Duration:
		*f, err = topology.ParseDuration(text)
	default:
		panic(fmt.Sprintf("config: no reader for %T", field))
	}
	return err
}

func parseList[T any](dst *[]T, texts []string, one func(string) (T, error)) error {
	list := make([]T, len(texts))
	var wrong []string
	for i, s := range texts {
		var err error
		if list[i], err = one(strings.TrimSpace(s)); err != nil {
			wrong = append(wrong, fmt.Sprintf("item %d: %v", i+1, err))
		}
	}
	*dst = list
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("expected an integer, got %q", yamldoc.Clip(s))
	}
	return n, nil
}

func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("expected true or false, got %q", yamldoc.Clip(s))
}
