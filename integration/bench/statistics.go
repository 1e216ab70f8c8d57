package bench

import (
	"slices"

	"github.com/rabbitdelay/rabbitdelay/cmd/lateness"
)

// spread is the median and the range of values that are at least one.
func spread(values []float64) (median, lowest, highest float64) {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	median = sorted[n/2]
	if n%2 == 0 {
		median = (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return median, sorted[0], sorted[n-1]
}

// distribution reduces values, which are sorted, to points of their cumulative
// distribution: dense at the end, where the interesting part is.
func distribution(sorted []float64) []Point {
	var points []Point
	for i := range 100 {
		points = append(points, Point{lateness.Percentile(sorted, float64(i)/100), float64(i) / 100})
	}
	for _, share := range []float64{0.99, 0.992, 0.994, 0.996, 0.998, 0.999, 0.9995, 1} {
		points = append(points, Point{lateness.Percentile(sorted, share), share})
	}
	return points
}
