package status

import "time"

// Plan is the part of a Config that can change while an Updater runs.
type Plan struct {
	UpdateFrequency, ReportFrequency time.Duration
}

// Change replaces the plan, and asks for a pass. It never blocks.
func (u *Updater) Change(plan Plan) {
	u.plans.Store(&plan)
	u.Wake()
}

// change puts the latest plan in force.
func (u *Updater) change() {
	plan := u.plans.Swap(nil)
	if plan == nil {
		return
	}
	u.cfg.UpdateFrequency = plan.UpdateFrequency
	u.setReportFrequency(plan.ReportFrequency)
}

func (u *Updater) setReportFrequency(period time.Duration) {
	u.report.period = period
	if u.cfg.Spread {
		u.report.phased, u.report.phase = true, phaseOf(u.cfg.NodeName, period)
	}
	u.metrics.period.Set(period.Seconds())
}
