import 'uplot/dist/uPlot.min.css';
import './base.css';
import './panel.css';
import './charts.css';
import './status.css';
import './badges.css';
