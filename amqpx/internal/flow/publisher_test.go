package flow

import "testing"

func TestSizeLimit(t *testing.T) {
	for reason, want := range map[string]int{
		"PRECONDITION_FAILED - message size 20971520 is larger than configured max size 16777216": 16777216,
		"PRECONDITION_FAILED - message size 536870913 is larger than max size 536870912":          536870912,
		"PRECONDITION_FAILED - message size is odd":                                               0,
		"PRECONDITION_FAILED - unknown delivery tag 1":                                            0,
	} {
		if limit, ok := SizeLimit(reason); ok != (want > 0) || ok && limit != want {
			t.Errorf("SizeLimit(%q) = %d, %t, want %d, %t", reason, limit, ok, want, want > 0)
		}
	}
}
