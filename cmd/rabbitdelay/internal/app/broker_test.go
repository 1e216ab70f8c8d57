package app

import (
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/config"
)

func TestDoctorPluginUse(t *testing.T) {
	for _, c := range []struct {
		delay config.Delay
		want  doctor.PluginUse
	}{
		{config.Delay{Strategy: config.StrategyBucket, Plugin: config.Plugin{Max: 1}}, doctor.PluginUnused},
		{config.Delay{Strategy: config.StrategyAuto}, doctor.PluginUnused},
		{config.Delay{Strategy: config.StrategyAuto, Plugin: config.Plugin{Min: 1}}, doctor.PluginOptional},
		{config.Delay{Strategy: config.StrategyAuto, Plugin: config.Plugin{Max: 1}}, doctor.PluginOptional},
		{config.Delay{Strategy: config.StrategyPlugin}, doctor.PluginRequired},
	} {
		if got := pluginUse(&config.Config{Delay: c.delay}); got != c.want {
			t.Errorf("%+v: got %v, want %v", c.delay, got, c.want)
		}
	}
}
