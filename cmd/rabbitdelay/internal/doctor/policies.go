package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// checkPolicies reports the effects of policies on delay queues, dead-letter queues and the parked queue, with one
// finding per policy and setting.
func (x *examination) checkPolicies() {
	for _, all := range grouped(x.plan.Warnings, func(w plan.Warning) string {
		return strings.Join([]string{w.Policy, w.Key, argument.Format(w.Value), strconv.FormatBool(w.Kept)}, "\x00")
	}) {
		w := all[0]
		names := texts(all, func(w plan.Warning) string { return w.Name })
		if w.Key == "" {
			x.found(Finding{ID: "policy-unreadable", Severity: SeverityWarning, What: fmt.Sprintf("The policy %s may match delay queues or dead letters; it could not be checked: %s.", w.Policy, w.Effect),
				Why: "A policy that lowers a TTL ends long delays early and drops dead letters, and a policy that expires a queue deletes its messages.", Fix: x.run("apply") + "   # and run doctor again, because the broker reports the effective settings of existing queues",
			})
			continue
		}
		policy := "A policy"
		if w.Policy != "" {
			policy = "The policy " + strconv.Quote(w.Policy)
		}
		id := "policy-" + w.Key
		if w.Key == "overflow" {
			id = "dead-letter-at-most-once"
		}
		one, many := "delay "+string(w.Kind), "delay "+string(w.Kind)+"s"
		if w.Kept {
			one, many = "queue of dead letters or parked messages", "queues of dead letters or parked messages"
		}
		x.found(Finding{ID: id, Severity: x.severityOf(w, names), Objects: names,
			What: fmt.Sprintf("%s sets %s to %s on %s: %s.", policy, w.Key, argument.Format(w.Value),
				shown.Count(len(names), one, many), list(names)),
			Why: strings.ToUpper(w.Effect[:1]) + w.Effect[1:] + ".",
			Fix: x.exempt(w),
		})
	}
	switch {
	case x.plan.PoliciesChecked:
	case x.snap.Live.BindingsKnown:
		x.uncheckedf(AreaPolicies, "policies could not be listed (the user needs the monitoring or policymaker tag); only policies that queues report were checked")
	default:
		x.uncheckedf(AreaPolicies, "policies on delay queues were not checked; that needs the management API")
	}
}

// severityOf returns the severity of a policy's effect. It is critical if the policy already loses messages or delivers
// them early. A length limit does so only when it is reached, so until then it is a warning.
func (x *examination) severityOf(w plan.Warning, names []string) Severity {
	limit, _ := argument.Integer(w.Value)
	full := func(name string) bool {
		q := x.snap.Live.Queues[name]
		has := map[string]int64{"max-length": q.Ready(), "max-length-bytes": q.ReadyBytes}[w.Key]
		return x.want[name].Native() || w.Kept && has*5 >= limit*4 // a kept queue refuses messages from four fifths of its limit on; see bound
	}
	switch {
	case strings.HasPrefix(w.Key, "max-length") && slices.ContainsFunc(names, full):
		return SeverityCritical
	case w.Mild, strings.HasPrefix(w.Key, "max-length"):
		return SeverityWarning
	}
	return SeverityCritical
}

// exempt returns the command that excludes all harmed objects from a policy. The broker's regular expressions support
// lookahead.
func (x *examination) exempt(w plan.Warning) string {
	i := slices.IndexFunc(x.snap.Live.Policies, func(p plan.Policy) bool { return p.Name == w.Policy && p.Definition[w.Key] != nil })
	if i < 0 {
		return x.ctl("list_policies") + "; " + x.ctl("list_operator_policies") + "   # then narrow the pattern of the matching policy, or clear it"
	}
	p := x.snap.Live.Policies[i]
	command := "set_policy"
	if p.Operator {
		command = "set_operator_policy"
	}
	definition, err := json.Marshal(p.Definition)
	if err != nil {
		return x.ctl(strings.Replace(command, "set", "clear", 1), p.Name)
	}
	pattern := `^(?!` + strings.Join(x.harmed(w.Policy), "|") + `)`
	if cured := curedBefore.FindStringSubmatch(p.Pattern); cured != nil {
		pattern += cured[1]
	} else {
		pattern += `(?=.*(?:` + p.Pattern + `))`
	}
	return x.ctl(command, "--priority", fmt.Sprint(p.Priority), "--apply-to", cmp.Or(p.ApplyTo, "all"), p.Name, pattern, string(definition))
}

// curedBefore matches the pattern of a policy that was changed earlier by the command that exempt returns.
var curedBefore = regexp.MustCompile(`^\^(\(\?!.*\)\(\?=\.\*\(\?:.*\)\))$`)

// harmed returns patterns for the objects that a policy harms: all objects of the strategies, and dead-letter queues,
// including those of future destinations.
func (x *examination) harmed(policy string) []string {
	var out []string
	for _, w := range x.plan.Warnings {
		pattern := regexp.QuoteMeta(w.Name) + "$"
		switch {
		case w.Policy != policy:
			continue
		case x.ours(w.Name):
			pattern = regexp.QuoteMeta(x.cfg.Prefix) + `\.`
		case strings.HasSuffix(w.Name, ".dead"):
			pattern = `.*\.dead$`
		}
		if !slices.Contains(out, pattern) {
			out = append(out, pattern)
		}
	}
	return out
}
